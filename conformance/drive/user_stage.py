"""Plain autograd on a user's own stage, arguments and output gradients, without changing any of them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import StageSpec, Tree
from gradconform.reference.autograd import AutogradAdapter
from gradconform.reference.recomputed import needs_grad
from gradconform.text.counts import count
from gradconform.trees import as_tuple, map_leaves, refuse_opaque, tensors

from .cancellation import Shaking
from .reference64 import Expected, widen, widened

InputGrads = tuple[Tensor | None, ...]
LossFn = Callable[[Tree], Tensor]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of one micro-batch or several.

    ``inputs`` has one entry per argument, a tensor or None; for several micro-batches it is a list of such tuples.
    ``params`` holds each parameter's gradient after all micro-batches, by name.
    """

    inputs: InputGrads | list[InputGrads]
    params: dict[str, Tensor | None] = field(default_factory=dict)


def autograd_gradients(
    stage: nn.Module,
    args: Any,
    output_grads: Any = None,
    *,
    loss_fn: LossFn | None = None,
    rng_state: Tensor | None = None,
) -> Gradients:
    """Return plain autograd's gradients on a copy of ``stage`` and copies of ``args``; neither is changed.

    ``args`` is a tuple, the arguments of one micro-batch, or a list of tuples, those of several. ``output_grads``
    mirrors the outputs (a tuple even for one), with None if no gradient flows; for several micro-batches it is a list.
    Omit it if the stage, or ``loss_fn(outputs)``, returns a 0-d loss. ``rng_state`` is the state of torch's CPU
    generator before the first forward. Raises ``ValueError`` for gradients that do not mirror the outputs.
    """
    several = isinstance(args, list)
    fed = pairs(args, output_grads)
    plain = UserStage(stage, loss_fn, rng_state if rng_state is not None else torch.get_rng_state())
    steps = [plain.advance(own, grads) for own, grads in fed]
    inputs = [step.inputs for step in steps]
    return Gradients(inputs if several else inputs[0], steps[-1].params)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Plain autograd's gradients after one micro-batch."""

    inputs: InputGrads
    params: dict[str, Tensor | None]
    drew: bool


class UserStage:
    """Plain autograd on a copy of a stage, one micro-batch after another, and on request in float64."""

    def __init__(
        self, stage: nn.Module, loss_fn: LossFn | None, rng_state: Tensor, *, prior: bool = False, wide: bool = False
    ) -> None:
        self._original, self._loss_fn, self._start = stage, loss_fn, rng_state
        self.copy = copy.deepcopy(stage)
        if prior:
            for own, theirs in zip(self.copy.parameters(), stage.parameters(), strict=True):
                own.grad = None if theirs.grad is None else theirs.grad.clone()
        self.rng = rng_state
        self.wide = wide
        self._session = AutogradAdapter().open(self.copy, StageSpec(loss_fn=_with_target(loss_fn)))
        self._fed: list[tuple[tuple[Any, ...], Tree]] = []
        self._prior = {name: None if p.grad is None else p.grad.clone() for name, p in self.copy.named_parameters()}

    @property
    def dtypes(self) -> str:
        """The dtypes and devices of the stage's parameters, for a message."""
        found = sorted({f"{str(p.dtype).removeprefix('torch.')} on {p.device}" for p in self.copy.parameters()})
        return ", ".join(found) or "no parameters"

    def advance(self, args: tuple[Any, ...], output_grads: Tree, shaking: Shaking | None = None) -> Wanted:
        """Return the gradients after the next micro-batch, run with its backward ``shaking``."""
        mb = len(self._fed)
        self._fed.append((args, output_grads))
        own = fresh(args, self._original, self.copy)
        if self.wide:
            own = tuple(_widened_leaf(arg) for arg in own)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.rng)
            outputs = self._session.forward(mb, own)
            drew = not torch.equal(torch.get_rng_state(), self.rng)
            self.rng = torch.get_rng_state()
        _refuse_structure(outputs, output_grads, self._loss_fn)
        if shaking is not None:
            shaking.begin([output for output in tensors(outputs) if needs_grad(output)])
        grads = map_leaves(widen, output_grads) if self.wide else output_grads
        inputs = self._session.backward(mb, None if grads is None else as_tuple(grads))
        params = {name: None if g is None else g.clone() for name, g in self._session.param_grads().items()}
        return Wanted(inputs, params, drew)

    def in_float64(self, mb: int) -> list[Wanted]:
        """Return the gradients in float64, on the CPU, of the micro-batches up to ``mb``, each alone."""
        plain, found = self._in_float64
        while len(found) <= mb:
            found.append(plain.alone(self._fed[len(found)]))
        return found[: mb + 1]

    def terms(self, mb: int) -> list[Wanted]:
        """Return, instead of each of these gradients, the size of the terms that it is the sum of."""
        shaken, found = self._shaken
        for still in self.in_float64(mb)[len(found) :]:
            shaking = Shaking()
            other = shaken.alone(self._fed[len(found)], shaking)
            inputs = tuple(map(shaking.terms, other.inputs, still.inputs))
            params = {name: shaking.terms(grad, still.params[name]) for name, grad in other.params.items()}
            found.append(Wanted(inputs, params, still.drew))
        return found[: mb + 1]

    def alone(self, fed: tuple[tuple[Any, ...], Tree], shaking: Shaking | None = None) -> Wanted:
        """Return the gradients of the next micro-batch, without those of earlier ones."""
        self.copy.zero_grad()
        return self.advance(*fed, shaking)

    @cached_property
    def _in_float64(self) -> tuple[UserStage, list[Wanted]]:
        """The same stage in float64, and its computed gradients."""
        return self._widened(), []

    @cached_property
    def _shaken(self) -> tuple[UserStage, list[Wanted]]:
        """The same stage for measuring terms, and its computed gradients."""
        return self._widened(), []

    def _widened(self) -> UserStage:
        plain = UserStage(self._original, self._loss_fn, self._start, wide=True)
        widened(plain.copy)
        return plain

    def expected_param(self, name: str, mb: int) -> Expected:
        """Return a parameter's float64 gradient after ``mb``."""
        expected = Expected()
        expected = expected.plus(widen(self._prior[name]))
        for wanted in self.in_float64(mb):
            expected = expected.plus(wanted.params[name])
        return expected


def _with_target(loss_fn: LossFn | None) -> Callable[[Tree, Tree], Tensor] | None:
    return None if loss_fn is None else lambda outputs, _: loss_fn(outputs)


def _widened_leaf(arg: Any) -> Any:
    """Return a float64 leaf that needs a gradient if ``arg`` does; a parameter is widened in the stage itself."""
    if not isinstance(arg, Tensor) or isinstance(arg, nn.Parameter):
        return arg
    return widen(arg).requires_grad_(arg.requires_grad)


def pairs(args: Any, output_grads: Any) -> list[tuple[tuple[Any, ...], Tree]]:
    """Return arguments and output gradients per micro-batch; raise if the two lists differ in length."""
    several = args if isinstance(args, list) else [args]
    if isinstance(args, list) and output_grads is not None:
        if not isinstance(output_grads, list) or len(output_grads) != len(args):
            what = count(len(output_grads), "entry") if isinstance(output_grads, list) else type(output_grads).__name__
            listed = count(len(args), "micro-batch")
            msg = f"args is a list of {listed}, output_grads has {what}; expected one per micro-batch"
            raise ValueError(msg)
        grads = output_grads
    else:
        grads = [output_grads] * len(several)
    if not several:
        msg = "args is an empty list; expected the arguments of one micro-batch or more"
        raise ValueError(msg)
    return [(own if isinstance(own, tuple) else (own,), grad) for own, grad in zip(several, grads, strict=True)]


def fresh(args: tuple[Any, ...], stage: nn.Module, own: nn.Module) -> tuple[Any, ...]:
    """Return copies of ``args``: new leaves, one for a tensor passed twice; a parameter becomes ``own``'s."""
    known: dict[int, Any] = {
        id(theirs): ours for theirs, ours in zip(stage.parameters(), own.parameters(), strict=True)
    }

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return known[id(leaf)]

    return tuple(map_leaves(copied, arg) for arg in args)


def _refuse_structure(outputs: Tree, output_grads: Tree, loss_fn: LossFn | None) -> None:
    """Raise ``ValueError`` if the gradients do not mirror the outputs, ``TypeError`` for unsupported outputs."""
    if loss_fn is None:
        refuse_opaque(outputs)
    if loss_fn is not None or output_grads is None:
        found = tensors(outputs)
        if loss_fn is None and (len(found) != 1 or found[0].dim()):
            shapes = [tuple(tensor.shape) for tensor in found]
            msg = f"there are no output_grads for outputs of shapes {shapes}; without them a 0-d loss is expected"
            raise ValueError(msg)
        return
    if len(as_tuple(outputs)) != len(as_tuple(output_grads)):
        given, wanted = len(as_tuple(output_grads)), len(as_tuple(outputs))
        msg = f"{count(given, 'output gradient')} for {count(wanted, 'output')}; expected one gradient or None for each"
        raise ValueError(msg)
