"""Plain autograd with one mistake, the same in every program, to compare with a defect.

If an implementation has the same results as plain autograd with a mistake, that mistake explains all its errors. The
driver runs it as any implementation, so zeroed, frozen and shared parameters need no special rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from gradconform.devices.tensor_facts import version_of
from gradconform.trees import as_tuple, flattened, map_leaves

from .autograd import AutogradAdapter, AutogradSession, pair_roots
from .recomputed import Root, needs_grad, nodes_behind

if TYPE_CHECKING:
    from gradconform.adapter import StageSpec, Tree

#: The parts of a backward: the result of I, the sums of W, the result of B, and the sums of B.
INPUT, WEIGHT, FULL_INPUT, FULL_WEIGHT = "I", "W", "B's inputs", "B's parameters"

Grads = tuple[Tensor | None, ...]
Context = tuple[Sequence[GradientEdge], Sequence[Tensor]]
#: Returns other start gradients, one per output that has one; None drops an output.
Starting = Callable[[Sequence[Tensor]], Sequence[Tensor | None]]
#: Returns other gradients of arguments: ``returning(args, grads)``.
Returning = Callable[[Sequence[Tensor], Sequence[Tensor | None]], Sequence[Tensor | None]]
#: Whether a parameter gets a gradient: ``choosing(place, count, parameter)``, of ``count`` parameters.
Choosing = Callable[[int, int, nn.Parameter], bool]
#: Returns the micro-batch whose context a W takes: ``picking(asked, waiting)``, in the order of their I.
Picking = Callable[[int, Sequence[int]], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMistake:
    """The mistake in the parts ``at``.

    ``factor`` multiplies gradients. ``clears`` says which ``.grad`` are cleared before gradients are added: ``all``, or
    those of parameters at which one is ``arriving``. ``use`` is the only use of a parameter that counts: 0 for the
    first of the forward, -1 for the last. ``returns`` changes the gradients of the arguments that need one, ``orders``
    the order of those of all arguments. ``copies`` says which tensors are copied when they are first passed, and never
    again. ``keeps_forward``: a second forward of a micro-batch runs, but the backward uses the graph of the first.
    ``again``: the forward runs again at the start of the backward. ``saves`` says how tensors are saved for the
    backward: all ``uncounted``, so that a later write to one is read and not refused, or weights ``by parameter``, so
    that the backward reads the parameter's memory of then.
    """

    at: frozenset[str]
    factor: float = 1.0
    starts: Starting | None = None
    returns: Returning | None = None
    orders: Returning | None = None
    chooses: Choosing | None = None
    picks: Picking | None = None
    clears: Literal["all", "arriving"] | None = None
    use: int | None = None
    copies: Literal["arguments", "output gradients"] | None = None
    keeps_forward: bool = False
    again: bool = False
    saves: Literal["uncounted", "by parameter"] | None = None


class Copies:
    """Copies of tensors as they were at their first use. It holds the tensors, so no id is reused."""

    def __init__(self) -> None:
        """Create an empty set of copies."""
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}

    def of(self, tensor: Tensor) -> Tensor:
        """Return the copy of a tensor."""
        return self._copies.setdefault(id(tensor), (tensor, tensor.detach().clone()))[1]

    def of_floats(self, value: Any) -> Any:
        """Return the copy of a floating-point tensor that is not a parameter; anything else unchanged."""
        copied = isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.is_floating_point()
        return self.of(value) if copied else value

    def in_graph(self, value: Any) -> Any:
        """Return a value as it was at its first use, in its own graph; see :meth:`of_floats`."""
        held = self.of_floats(value)
        return value if held is value or torch.equal(held, value) else value * 0.0 + held


class MistakenSession(AutogradSession):
    """One stage under plain autograd with one mistake; a B with the mistake in it runs as I and W."""

    def __init__(self, stage: nn.Module, spec: StageSpec, mistake: OneMistake) -> None:
        """Store the stage; nothing is changed in it."""
        super().__init__(stage, spec)
        self._mistake = mistake
        self._used: dict[int, Context] = {}
        self._copies = Copies()

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Return the stage's outputs; also compute the loss if the spec has one."""
        first = self._forwards.get(mb) if self._mistake.keeps_forward else None
        copied = self._mistake.copies == "arguments"
        with _saved(self._mistake.saves, list(self._parameters.values())):
            outputs = super().forward(mb, tuple(map(self._copies.in_graph, args)) if copied else args, target)
        self._forwards[mb] = first or (args, self._forwards[mb][1])
        return outputs

    def backward(self, mb: int, output_grads: Tree) -> Grads:
        """Return the gradients of the arguments, and add those of the parameters."""
        self._run_again(mb)
        if self._mistake.copies == "output gradients":
            output_grads = map_leaves(self._copies.of_floats, output_grads)
        if self._mistake.at.isdisjoint({FULL_INPUT, FULL_WEIGHT}):
            return super().backward(mb, output_grads)
        found = self._returned(mb, output_grads, FULL_INPUT, FULL_WEIGHT)
        self._accumulate(self._weight_roots.pop(mb), wrong=FULL_WEIGHT in self._mistake.at)
        return found

    def backward_input(self, mb: int, output_grads: Tree) -> Grads:
        """Return the gradients of the arguments."""
        self._run_again(mb)
        if self._mistake.copies == "output gradients":
            output_grads = map_leaves(self._copies.of_floats, output_grads)
        return self._returned(mb, output_grads, INPUT, WEIGHT)

    def backward_weight(self, mb: int) -> None:
        """Add the gradients of the parameters to ``.grad``."""
        wrong = WEIGHT in self._mistake.at
        if wrong and self._mistake.picks is not None:
            known = {**self._used, **self._weight_roots}
            context = known[self._mistake.picks(mb, list(self._weight_roots))]
            self._used[mb] = self._weight_roots.pop(mb)
        else:
            context = self._weight_roots.pop(mb)
        self._accumulate(context, wrong=wrong)

    def close(self) -> None:
        """Free every graph."""
        super().close()
        self._used.clear()

    def _run_again(self, mb: int) -> None:
        """Replace the graph of a micro-batch by that of a second forward on the same arguments; a loss has none."""
        if self._mistake.again and self._spec.loss_fn is None:
            args, _ = self._forwards[mb]
            self._forwards[mb] = args, self._stage(*args)

    def _returned(self, mb: int, output_grads: Tree, own: str, other: str) -> Grads:
        """Return the result of I; ``own`` is the part that returns, ``other`` the part that adds the deferred ones."""
        mistake = self._mistake
        args, outputs = self._forwards[mb]
        both = {own, other} <= mistake.at
        if mistake.starts is not None and both:  # as one backward, which may run a forward again
            return super().backward_input(mb, _changed(outputs, output_grads, mistake.starts))
        found = super().backward_input(mb, output_grads)
        if own not in mistake.at:
            return found
        if mistake.starts is not None:
            found = self._again(args, outputs, output_grads)
        found = (
            tuple(None if grad is None else grad * mistake.factor for grad in found) if mistake.factor != 1.0 else found
        )
        if mistake.orders is not None:
            found = tuple(mistake.orders(args, found))
        return found if mistake.returns is None else _placed(args, found, mistake.returns)

    def _again(self, args: tuple[Any, ...], outputs: Tree, output_grads: Tree) -> Grads:
        """Return the gradients of the arguments from a backward with other start gradients."""
        starts = self._mistake.starts
        roots, grads = pair_roots(outputs, _changed(outputs, output_grads, starts) if starts else output_grads)
        wanted = {id(arg): arg for arg in args if isinstance(arg, Tensor) and arg.requires_grad}
        if not roots or not wanted:
            return (None,) * len(args)
        given = torch.autograd.grad(roots, list(wanted.values()), grads, retain_graph=True, allow_unused=True)  # type: ignore[arg-type] # torch takes edges as well
        known = dict(zip(wanted, given, strict=True))
        return tuple(None if (grad := known.get(id(arg))) is None else grad.clone() for arg in args)

    def _accumulate(self, context: Context, *, wrong: bool) -> None:
        mistake = self._mistake if wrong else OneMistake(at=frozenset())
        roots, grads = context
        alone = mistake.starts is not None and not (
            {INPUT, WEIGHT} <= mistake.at or {FULL_INPUT, FULL_WEIGHT} <= mistake.at
        )
        starts = mistake.starts(grads) if alone and mistake.starts is not None else grads
        pairs = [
            (root, start * mistake.factor if mistake.factor != 1.0 else start)
            for root, start in zip(roots, starts, strict=True)
            if start is not None
        ]
        every = list(self._parameters.values())
        if self._spec.weights == "reversed":  # a mistake follows the order in which W is passed them
            every.reverse()
        chosen = mistake.chooses or _every
        trained = [one for n, one in enumerate(every) if one.requires_grad and chosen(n, len(every), one)]
        if mistake.clears == "all":
            for parameter in trained:
                parameter.grad = None
        if not pairs or not trained:
            return
        edges, values = zip(*pairs, strict=True)
        arriving = trained if mistake.clears == "arriving" else ()
        with _one_use(trained, edges, mistake.use), _cleared(arriving):
            torch.autograd.backward(edges, values, inputs=trained, retain_graph=self._mistake.picks is not None)


def _every(_: int, __: int, ___: nn.Parameter) -> bool:
    return True


def _changed(outputs: Tree, output_grads: Tree, starts: Starting) -> Tree:
    """Return output gradients with replacements from ``starts``; a loss, which has none, keeps its own."""
    if output_grads is None:
        return None
    roots, given = flattened(as_tuple(outputs)), flattened(output_grads)
    flowing = [place for place, root in enumerate(roots) if needs_grad(root) and given[place] is not None]
    places = iter(range(len(given)))
    new = dict(zip(flowing, starts([given[place] for place in flowing]), strict=True))
    return map_leaves(lambda leaf: new.get(place, leaf) if (place := next(places)) in new else leaf, output_grads)


def _placed(args: tuple[Any, ...], found: Grads, returns: Returning) -> Grads:
    """Return the gradients of the arguments with replacements from ``returns``."""
    places = [place for place, arg in enumerate(args) if isinstance(arg, Tensor) and arg.requires_grad]
    new = dict(zip(places, returns([args[n] for n in places], [found[n] for n in places]), strict=True))
    return tuple(new.get(place, grad) for place, grad in enumerate(found))


@contextlib.contextmanager
def _saved(way: Literal["uncounted", "by parameter"] | None, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Save tensors for the backward in a wrong way within the context."""
    if way is None:
        yield
        return
    owners = {one.data_ptr(): one for one in parameters if one.layout is torch.strided} if way == "by parameter" else {}

    def pack(tensor: Tensor) -> Any:
        owner = owners.get(tensor.data_ptr()) if tensor.layout is torch.strided else None
        if owner is None or tensor.dtype is not owner.dtype or tensor.numel() != owner.numel():
            held = tensor.detach()
            return held, version_of(held)
        return owner, tensor.shape, tensor.stride()

    def unpack(packed: Any) -> Tensor:
        held, *form = packed
        found: Tensor = held
        if isinstance(held, nn.Parameter):
            found = held.data.as_strided(*form)
        elif way == "by parameter" and [version_of(held)] != form:
            msg = "a saved tensor was written to"
            raise RuntimeError(msg)
        return found

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


@contextlib.contextmanager
def _one_use(parameters: Sequence[nn.Parameter], roots: Sequence[Root], which: int | None) -> Iterator[None]:
    """Let only one use give each parameter its gradient within the context; ``which`` is None for all of them."""
    with contextlib.ExitStack() as hooks:
        for parameter in parameters if which is not None else ():
            end = get_gradient_edge(parameter).node
            uses = [
                (node, slot)
                for node in nodes_behind(roots)
                for slot, (child, _) in enumerate(node.next_functions)
                if child is end
            ]
            uses.sort(key=lambda one: (one[0]._sequence_nr(), one[1]))  # noqa: SLF001 (no other attribute has their order)
            for node, slot in uses:
                if which is not None and (node, slot) != uses[which]:
                    hooks.callback(node.register_hook(_dropping(slot)).remove)
        yield


@contextlib.contextmanager
def _cleared(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Clear ``.grad`` of each parameter within the context, when a gradient arrives there."""

    def clearing(parameter: nn.Parameter) -> Callable[[Tensor], None]:
        return lambda _: setattr(parameter, "grad", None)

    with contextlib.ExitStack() as hooks:
        for parameter in parameters:
            hooks.callback(parameter.register_hook(clearing(parameter)).remove)
        yield


def _dropping(dropped: int) -> Any:
    def hook(grad_inputs: Grads, grad_outputs: object) -> Grads:
        del grad_outputs
        return tuple(None if slot == dropped else grad for slot, grad in enumerate(grad_inputs))

    return hook


class MistakenAdapter(AutogradAdapter):
    """The oracle with one mistake."""

    name = "autograd with one mistake"

    def __init__(self, mistake: OneMistake) -> None:
        """Store the mistake that every session makes."""
        self._mistake = mistake

    def open(self, stage: nn.Module, spec: StageSpec) -> MistakenSession:
        """Return a session on ``stage``."""
        return MistakenSession(stage, spec, self._mistake)
