"""Watches in addition to gradients: hooks, lifetimes, state, storage."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from operator import attrgetter, is_
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from gradconform.devices.device import device_of
from gradconform.devices.tensor_facts import place_of, start_of
from gradconform.target.named_tensors import NamedTensors
from gradconform.trees import Tree, equal, flattened, tensors

from .holders import holder_of, unfrozen
from .observation import Alive, HookCall, State

#: The types that may be replaced by an equal copy: a subclass may hold more than its values.
_PLAIN = frozenset({Tensor, nn.Parameter})

_Name = TypeVar("_Name", bound=Hashable)

_STRIDED = torch.strided  # read for every tensor after every action


def copy_of(value: Any, *known: Any) -> Any:
    """Return a detached copy of a tensor on the CPU; anything else unchanged.

    Judged values are on the CPU: a device that is itself in question compares nothing, and evidence holds none of its
    memory. If the tensor equals one of ``known``, earlier copies, that copy is returned. Then identical objects are
    known to be equal, and are neither stored nor compared twice.
    """
    own = value if not isinstance(value, Tensor) or value.is_cpu else on_cpu(value)
    for copy in known:
        if own is copy or _is_copied(own, copy):
            return copy
    return _new_copy(value, own)


def _new_copy(value: Any, own: Any) -> Any:
    """Return the copy of ``value`` as :func:`copy_of` does, if none is known; ``own`` is the value on the CPU."""
    if own is not value or not isinstance(value, Tensor):
        return own
    return own.detach().clone() if own.requires_grad else own.clone()


def _all_on_cpu(values: Collection[Any]) -> list[Any]:
    """Return values with device tensors replaced by copies on the CPU; each device waits once."""
    away: dict[torch.device, list[Tensor]] = {}
    for value in values:
        if isinstance(value, Tensor) and not value.is_cpu:
            away.setdefault(value.device, []).append(value)
    if not away:
        return list(values)
    copied = {
        id(value): copy
        for device, several in away.items()
        for value, copy in zip(several, device_of(device).all_to_cpu(several), strict=True)
    }
    return [copied.get(id(value), value) for value in values]


def copies_of(values: Sequence[Any], known: Sequence[Any] | None) -> tuple[Any, ...]:
    """Return copies of ``values`` as :func:`copy_of` makes them, ``known`` one to one if the counts are equal.

    ``known`` itself is returned if every value equals its copy and is on the CPU.
    """
    if set(map(type, values)) == {type(None)}:  # common: arguments without a gradient
        return tuple(values)
    held = dict(enumerate(values))
    if known is None or len(known) != len(values):
        return tuple(copies_by_name(held).values())
    copies = dict(enumerate(known))
    found = copies_by_name(held, copies)
    return known if found is copies and isinstance(known, tuple) else tuple(found.values())


def copies_by_name(held: Mapping[_Name, Any], *known: Mapping[_Name, Any]) -> Mapping[_Name, Any]:
    """Return copies of ``held`` as :func:`copy_of` makes them, ``known`` by the same names.

    One of ``known`` itself is returned if every value equals its copy and is on the CPU.
    """
    found: dict[_Name, Any] = {}
    for name, value in held.items():
        for copies in known:
            copy = copies.get(name)
            if value is copy or _is_copied(value, copy):
                found[name] = copy
                break
        else:
            if isinstance(value, Tensor) and not value.is_cpu:
                return _copied_to_cpu(held, known)
            found[name] = None if value is None else _new_copy(value, value)
    for copies in known:
        if list(copies) == list(found) and all(map(is_, copies.values(), found.values())):
            return copies
    return found


def _copied_to_cpu(held: Mapping[_Name, Any], known: Iterable[Mapping[_Name, Any]]) -> Mapping[_Name, Any]:
    """Return new copies of values that are not all on the CPU; what is copied from a device is a copy already."""
    here = dict(zip(held, _all_on_cpu(held.values()), strict=True))
    made = {name: own for name, own in here.items() if own is not held[name]}
    return dict(copies_by_name(here, *known, made))


def _is_copied(value: Any, copy: Any) -> bool:
    """Return whether ``value`` is a CPU tensor that is equal to its copy, strides included.

    The values are compared each time: a write through ``.data``, or by a user's kernel, counts no version.
    """
    if not (
        type(copy) is Tensor
        and type(value) in _PLAIN
        and value.is_cpu
        and value.dtype is copy.dtype
        and value.layout is copy.layout is _STRIDED
        and value.stride() == copy.stride()
    ):
        return False
    try:
        return torch.equal(value, copy)
    except NotImplementedError:  # a dtype that torch cannot compare
        return equal(value, copy)


def on_cpu(value: Any) -> Any:
    """Return a detached tensor on the CPU, sharing memory if it is there already; anything else unchanged."""
    if not isinstance(value, Tensor):
        return value
    return value.detach() if value.is_cpu else device_of(value.device).to_cpu(value)


def sits_on(found: torch.device, device: torch.device) -> bool:
    """Return whether ``found`` is ``device``; a device without an index matches all of its kind."""
    return found.type == device.type and device.index in {None, found.index}


def dense(tensor: Tensor) -> Tensor:
    """Return a dense copy whose NaNs compare equal to themselves."""
    dense = tensor.detach().to_dense() if tensor.layout != torch.strided else tensor.detach()
    return torch.nan_to_num(dense, nan=0.125) if dense.is_floating_point() else dense


class HookWatch:
    """Counts hooks on every parameter, or on every submodule, of a stage, and stores the gradients they received.

    A stage with its own hooks records their calls in its list ``called``.
    """

    def __init__(self, stage: nn.Module, *, modules: bool) -> None:
        """Install the hooks: on modules, which adds nodes to the graph, or else on parameters."""
        self._calls: list[HookCall] = []
        self._noted: list[str] = vars(stage).get("called", [])
        self._handles: list[Any] = []
        if modules:
            for name, module in stage.named_modules():
                if not any(True for _ in module.children()):
                    self._handles.append(module.register_full_backward_hook(self._on_module(name)))
            return
        for name, parameter in stage.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._on_tensor(name)))
                self._handles.append(parameter.register_post_accumulate_grad_hook(self._on_accumulate(name)))

    def remove(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def take(self) -> tuple[HookCall, ...]:
        """Return the calls since the previous call."""
        noted = [HookCall("own", name, None) for name in self._noted]
        calls, self._calls[:], self._noted[:] = (*self._calls, *noted), [], []
        return calls

    def _on_tensor(self, name: str) -> Any:
        def hook(grad: Tensor) -> None:
            self._calls.append(HookCall("tensor", name, copy_of(grad)))

        return hook

    def _on_accumulate(self, name: str) -> Any:
        def hook(parameter: Tensor) -> None:
            self._calls.append(HookCall("post_accumulate", name, copy_of(parameter.grad)))

        return hook

    def _on_module(self, name: str) -> Any:
        def hook(module: nn.Module, grad_input: object, grad_output: object) -> None:
            del module, grad_input, grad_output
            self._calls.append(HookCall("module", name, None))

        return hook


class _Held:
    """Replaces a saved tensor in the graph, so that a weak reference shows when the graph frees it."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class LifetimeWatch:
    """Weak references to the tensors of each micro-batch: its outputs, the graph's saved tensors, its arguments."""

    def __init__(self) -> None:
        """Create an empty watch."""
        self._outputs: dict[int, list[weakref.ref[Any]]] = {}
        self._saved: dict[int, list[weakref.ref[Any]]] = {}
        self._args: dict[int, list[weakref.ref[Any]]] = {}

    @contextlib.contextmanager
    def watch(self, mb: int, args: tuple[Any, ...]) -> Iterator[None]:
        """Watch the tensors that the graph saves while micro-batch ``mb`` runs forward."""
        saved = self._saved.setdefault(mb, [])
        self._args[mb] = [weakref.ref(arg) for arg in args if isinstance(arg, Tensor)]

        def pack(tensor: Tensor) -> _Held:
            held = _Held(tensor.detach())  # a saved output would keep itself alive through its own graph
            saved.append(weakref.ref(held))
            return held

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
            yield

    def outputs(self, mb: int, outputs: Tree) -> None:
        """Watch the outputs of micro-batch ``mb``."""
        self._outputs[mb] = [weakref.ref(tensor) for tensor in tensors(outputs)]

    def count(self) -> dict[int, Alive]:
        """Return the counts of live tensors of each micro-batch."""
        return {
            mb: Alive(_alive(self._outputs.get(mb, [])), _alive(saved), _alive(self._args[mb]))
            for mb, saved in self._saved.items()
        }

    def seen(self, *, ended: bool, allowed: Mapping[int, Alive]) -> dict[str, Any]:
        """Return what a step shows: the counts and, at the end, what holds tensors beyond the ``allowed`` ones.

        To name a holder takes a search of all objects, so none is named where plain autograd keeps as many.
        """
        alive = self.count()
        left = ended and any(not one.within(allowed.get(mb, one)) for mb, one in alive.items())
        return {"alive": alive, "held": self._held()} if left else {"alive": alive}

    def _held(self) -> dict[int, str]:
        """Run the garbage collector, and return what still holds tensors of each micro-batch; "" if it is unknown."""
        gc.collect()
        found: dict[int, str] = {}
        with unfrozen():
            for mb in self._saved:
                references = (*self._outputs.get(mb, ()), *self._saved[mb], *self._args[mb])
                for reference in references:
                    left = reference()
                    if left is not None:
                        found[mb] = found.get(mb) or holder_of(left)
        return found


def held_after(let_go: Callable[[], Mapping[str, weakref.ref[Any]]]) -> dict[str, str]:
    """Return what holds objects that are still alive after ``let_go`` has freed them, by name; "" if it is unknown.

    Without the collector all new objects are young, so the search of all objects is only for those that are held.
    """
    references = let_go()
    for generation in 1, 2:
        gc.collect(generation)
        if all(reference() is None for reference in references.values()):
            return {}
    return _named_holders(references)


def _named_holders(references: Mapping[str, weakref.ref[Any]]) -> dict[str, str]:
    """Return what holds each object that is alive, by name."""
    found: dict[str, str] = {}
    with unfrozen():
        for name, reference in references.items():
            held = reference()
            if held is not None:
                found[name] = holder_of(held)
    return found


def _alive(references: list[weakref.ref[Any]]) -> int:
    return sum(reference() is not None for reference in references)


def collections() -> int:
    """Return how often the collector has run; it moves live objects to an older generation."""
    return sum(generation["collections"] for generation in gc.get_stats())


def live_tensors(collections_before: int) -> int:
    """Return how many tensors made since the collector was stopped are alive, including garbage in cycles.

    They are in the youngest generation, unless a user ran the collector by hand: then all generations are searched.
    """
    youngest = collections() == collections_before
    kinds = Counter(map(type, gc.get_objects(0) if youngest else gc.get_objects()))
    return sum(count for kind, count in kinds.items() if issubclass(kind, Tensor))


def _by_name(held: Mapping[int, Tree]) -> dict[str, Tensor]:
    """Return the tensors that a caller holds, named by slot and micro-batch."""
    return {
        f"{slot} of micro-batch {mb}": leaf
        for mb, tree in held.items()
        for slot, leaf in enumerate(flattened(tree))
        if isinstance(leaf, Tensor)
    }


class Surroundings(NamedTuple):
    """The tensors around an action that it must not change, by name: those of a stage and of its caller."""

    args: Mapping[str, Tensor]
    output_grads: Mapping[str, Tensor]
    params: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, stage: NamedTensors, args: Mapping[int, tuple[Any, ...]], output_grads: Mapping[int, Tree]
    ) -> Surroundings:
        """Return the tensors of a stage, and those that its caller holds of each micro-batch."""
        return cls(_by_name(args), _by_name(output_grads), stage.parameters(), stage.buffers())

    def state(
        self, device: torch.device, handed: Mapping[str, bool], *known: State | None, process: Mapping[str, Any]
    ) -> State:
        """Return a copy of all of it, with the settings of the ``process`` and the caller's view of ``handed``.

        Values that are equal in one of the ``known`` states are not copied again.
        """
        flags: Mapping[str, bool]
        flags = {name: parameter.requires_grad for name, parameter in self.params.items()}
        flags.update({f"argument {name}": arg.requires_grad for name, arg in self.args.items()})
        rng = device_of(device).generator_states()
        earlier = [state for state in known if state is not None]
        flags = next((state.requires_grad for state in earlier if state.requires_grad == flags), flags)
        copies = {
            what: copies_by_name(held, *map(attrgetter(what), earlier))
            for what, held in zip(self._fields, self, strict=True)
        }
        copied = copy_of(rng, *(state.rng for state in earlier))
        return State(**copies, requires_grad=flags, rng=copied, process=process, handed=handed)


def shared_storage(
    returned: Mapping[int, tuple[Tensor | None, ...]], param_grads: Mapping[str, Tensor | None], around: Surroundings
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of names whose tensors share storage; one of each is a returned or stored gradient."""
    sorts: tuple[tuple[str, Mapping[str, Any], bool], ...] = (
        ("input gradient", _by_name(returned), True),
        ("gradient of", param_grads, True),
        ("output gradient", around.output_grads, False),
        ("argument", around.args, False),
        ("parameter", around.params, False),
    )
    by_address: dict[int, list[tuple[str, str, Tensor, bool]]] = {}
    for sort, named, is_gradient in sorts:
        for name, tensor in named.items():
            if isinstance(tensor, Tensor) and tensor.layout is _STRIDED and tensor.numel():
                by_address.setdefault(place_of(tensor), []).append((sort, name, tensor, is_gradient))
    return tuple(
        (f"{a[0]} {a[1]}", f"{b[0]} {b[1]}")
        for group in by_address.values()
        if len(group) > 1
        for a, b in combinations(group, 2)
        if (a[3] or b[3]) and _overlap(a[2], b[2])
    )


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of one storage overlap in memory: adjacent views in a flat buffer do not."""
    start, end = _byte_range(one)
    begin, stop = _byte_range(other)
    return start < stop and begin < end and not _addresses(one).isdisjoint(_addresses(other))


def _addresses(tensor: Tensor) -> set[int]:
    """Return the start address of every element of ``tensor``: columns of one buffer interleave and do not overlap."""
    starts = torch.tensor(start_of(tensor))
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        starts = starts.unsqueeze(-1) + torch.arange(size) * stride * tensor.element_size()
    return set(starts.flatten().tolist())


def _byte_range(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of ``tensor`` in memory and the first one after it."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start_of(tensor), start_of(tensor) + (reach + 1) * tensor.element_size()
