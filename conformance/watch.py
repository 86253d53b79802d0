"""What is watched beside gradients: hooks, lifetimes, state, storage."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.devices.device import device_of
from gradconform.fixtures.trees import Tree, leaves, tensors
from gradconform.observation import Alive, HookCall, State


def copy_of(value: Any, before: Any = None) -> Any:
    """Return a detached copy of a tensor on the CPU; anything else as it is.

    What is judged lies on the CPU: a device that is itself in question compares nothing, and evidence holds none of
    its memory. Where the tensor is equal to ``before``, an earlier copy, that copy is returned: what is the same
    object is known to be the same, and need not be judged again.
    """
    if not isinstance(value, Tensor):
        return value
    own = value if value.is_cpu else on_cpu(value)
    if isinstance(before, Tensor) and _same_form(own, before) and torch.equal(own, before):
        return before
    if own is not value:
        return own
    return own.detach().clone() if own.requires_grad else own.clone()


def on_cpu(value: Any) -> Any:
    """Return a detached tensor on the CPU, the tensor's own memory where it lies there; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return value.detach() if value.is_cpu else device_of(value.device).to_cpu(value)


def _same_form(one: Tensor, other: Tensor) -> bool:
    return one.layout == other.layout == torch.strided and one.dtype == other.dtype and one.device == other.device


def write_over(tensor: Tensor) -> None:
    """Write another number into every element, as whoever owns a tensor may; one that is sparse is left alone."""
    if tensor.layout != torch.strided:
        return
    # Where several elements lie in one place (stride 0), torch refuses to write: each place is written once.
    places = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    with torch.no_grad():
        tensor.detach().as_strided(places, tensor.stride()).fill_(7)


class HookWatch:
    """Counts hooks on every parameter, or on every submodule, of a stage, and keeps the gradients they were given."""

    def __init__(self, stage: nn.Module, *, modules: bool) -> None:
        """Install the hooks: on modules, which puts nodes of their own into the graph, or else on parameters."""
        self._calls: list[HookCall] = []
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
        """Take the hooks away again."""
        for handle in self._handles:
            handle.remove()

    def take(self) -> list[HookCall]:
        """Return the calls since the last time."""
        calls, self._calls[:] = list(self._calls), []
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
    """What the graph holds in place of a saved tensor, so that a weak reference tells when the graph let go."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class LifetimeWatch:
    """Weak references to what each micro-batch made: its outputs, what its graph saved, its arguments."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._outputs: dict[int, list[weakref.ref[Any]]] = {}
        self._saved: dict[int, list[weakref.ref[Any]]] = {}
        self._args: dict[int, list[weakref.ref[Any]]] = {}

    @contextlib.contextmanager
    def watch(self, mb: int, args: tuple[Any, ...]) -> Iterator[None]:
        """Watch what the graph saves while micro-batch ``mb`` runs forward."""
        saved = self._saved.setdefault(mb, [])
        self._args[mb] = [weakref.ref(arg) for arg in args if isinstance(arg, Tensor)]

        def pack(tensor: Tensor) -> _Held:
            held = _Held(tensor.detach())  # an output held as it is would keep itself alive through its own graph
            saved.append(weakref.ref(held))
            return held

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held.tensor):
            yield

    def outputs(self, mb: int, outputs: Tree) -> None:
        """Watch the outputs of micro-batch ``mb``."""
        self._outputs[mb] = [weakref.ref(tensor) for tensor in tensors(outputs)]

    def count(self) -> dict[int, Alive]:
        """Return what is alive of each micro-batch."""
        return {
            mb: Alive(_alive(self._outputs.get(mb, [])), _alive(saved), _alive(self._args[mb]))
            for mb, saved in self._saved.items()
        }


def _alive(references: list[weakref.ref[Any]]) -> int:
    return sum(reference() is not None for reference in references)


def collections() -> int:
    """Return how often the collector has run; it moves what it finds alive to an older generation."""
    return sum(generation["collections"] for generation in gc.get_stats())


def live_tensors(collections_before: int) -> int:
    """Return how many tensors made since the collector was stopped are alive: garbage in cycles counts.

    What was made since then is in the youngest generation, unless somebody ran the collector by hand: then all are
    looked at.
    """
    youngest = collections() == collections_before
    kinds = Counter(map(type, gc.get_objects(0) if youngest else gc.get_objects()))
    return sum(count for kind, count in kinds.items() if issubclass(kind, Tensor))


def _by_name(held: Mapping[int, Tree]) -> dict[str, Tensor]:
    """Return the tensors that a caller holds, named by slot and micro-batch."""
    return {
        f"{slot} of micro-batch {mb}": leaf
        for mb, tree in held.items()
        for slot, (_, leaf) in enumerate(leaves(tree))
        if isinstance(leaf, Tensor)
    }


def _copies(tensors_: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: copy_of(tensor, before.get(name)) for name, tensor in tensors_.items()}


_NOTHING = State({}, {}, {}, {}, {}, torch.empty(0))


def snapshot(
    stage: nn.Module,
    args: Mapping[int, tuple[Any, ...]],
    output_grads: Mapping[int, Tree],
    device: torch.device,
    before: State | None = None,
) -> State:
    """Copy what an action must not change on ``device``; what is as it was ``before`` is not copied again."""
    last = _NOTHING if before is None else before
    held = _by_name(args)
    params = dict(stage.named_parameters())
    flags = {name: parameter.requires_grad for name, parameter in params.items()}
    flags.update({f"argument {name}": arg.requires_grad for name, arg in held.items()})
    flags["grad mode"] = torch.is_grad_enabled()
    return State(
        args=_copies(held, last.args),
        output_grads=_copies(_by_name(output_grads), last.output_grads),
        params=_copies(params, last.params),
        buffers=_copies(dict(stage.named_buffers()), last.buffers),
        requires_grad=flags,
        rng=device_of(device).generator_states(),
    )


def place_of(tensor: Tensor) -> int:
    """Return where the values of ``tensor`` lie in memory; of one without storage, where its object lies."""
    if tensor.layout != torch.strided:
        return id(tensor)
    try:
        if tensor.data_ptr() == 0 and tensor.numel():  # asked first: on lazy, untyped_storage() may end the process
            return id(tensor)
        return tensor.untyped_storage().data_ptr()
    except (NotImplementedError, RuntimeError):  # a device whose tensors have no storage, such as lazy's
        return id(tensor)


def shared_storage(
    returned: Mapping[int, tuple[Tensor | None, ...]],
    param_grads: Mapping[str, Tensor | None],
    output_grads: Mapping[int, Tree],
    args: Mapping[int, tuple[Any, ...]],
    params: Mapping[str, Tensor],
) -> tuple[tuple[str, str], ...]:
    """Return the pairs of names, one of them a gradient handed out or stored, whose tensors share storage."""
    named: list[tuple[str, Any, bool]] = []
    named += [(f"input gradient {name}", grad, True) for name, grad in _by_name(returned).items()]
    named += [(f"gradient of {name}", grad, True) for name, grad in param_grads.items()]
    named += [(f"output gradient {name}", grad, False) for name, grad in _by_name(output_grads).items()]
    named += [(f"argument {name}", arg, False) for name, arg in _by_name(args).items()]
    named += [(f"parameter {name}", parameter, False) for name, parameter in params.items()]
    places: dict[int, list[tuple[str, Tensor, bool]]] = {}
    for name, tensor, is_gradient in named:
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided and tensor.numel():
            places.setdefault(place_of(tensor), []).append((name, tensor, is_gradient))
    pairs: list[tuple[str, str]] = []
    for group in places.values():
        pairs += [(a[0], b[0]) for a, b in combinations(group, 2) if (a[2] or b[2]) and _overlap(a[1], b[1])]
    return tuple(pairs)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors of one storage meet in memory: views side by side in a flat buffer do not."""
    start, end = _extent(one)
    begin, stop = _extent(other)
    return start < stop and begin < end and not _places(one).isdisjoint(_places(other))


def _places(tensor: Tensor) -> set[int]:
    """Return where every element of ``tensor`` begins in memory: columns of one buffer interleave and do not meet."""
    places = torch.tensor(_start(tensor))
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places.unsqueeze(-1) + torch.arange(size) * stride * tensor.element_size()
    return set(places.flatten().tolist())


def _extent(tensor: Tensor) -> tuple[int, int]:
    """Return the first byte of ``tensor`` in memory and the first one behind it."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _start(tensor), _start(tensor) + (reach + 1) * tensor.element_size()


def _start(tensor: Tensor) -> int:
    """Return the first byte of ``tensor``; ``data_ptr()`` fails on a device whose tensors have no storage."""
    return place_of(tensor) + int(tensor.storage_offset()) * tensor.element_size()
