"""A backward somebody has in hand, against plain autograd on the same stage, arguments and output gradients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import Capabilities, StageSpec, Tree
from gradconform.evidence import Evidence
from gradconform.fixtures.trees import as_tuple, map_leaves, tensors
from gradconform.judge.finding import Finding
from gradconform.judge.gradients import compare
from gradconform.materials import Materials
from gradconform.observation import Observation, Step
from gradconform.program import Action
from gradconform.reference64 import Expected, widen, widened
from gradconform.reference.autograd import AutogradAdapter
from gradconform.results import NonConformingError
from gradconform.tolerance import Partials
from gradconform.trial import Trial

InputGrads = tuple[Tensor | None, ...]
#: Runs forward and backward of one micro-batch: ``backward(stage, args, output_grads)`` returns the input gradients.
Backward = Callable[[nn.Module, tuple[Any, ...], Tree], Any]
LossFn = Callable[[Tree], Tensor]


class GradientMismatchError(NonConformingError):
    """A gradient is not the one of plain autograd; the message names every wrong tensor with its numbers."""


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of one micro-batch or several.

    ``inputs`` has one entry per argument, a tensor or None; for several micro-batches it is a list of such tuples.
    ``params`` holds the gradient that each parameter has after all of them, by name.
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
    """Return what plain autograd gives on a copy of ``stage`` and copies of ``args``; neither is changed.

    ``args`` is a tuple, the arguments of one micro-batch, or a list of tuples, those of several. ``output_grads``
    mirrors the outputs (a tuple even of one), None where no gradient flows; for several micro-batches it is a list. It
    is left out where the stage, or ``loss_fn(outputs)``, returns a 0-d loss. ``rng_state`` is the state of torch's CPU
    generator before the first forward. Raises ``ValueError`` for gradients that do not mirror the outputs.
    """
    several = isinstance(args, list)
    fed = _pairs(args, output_grads)
    oracle = _Oracle(stage, loss_fn, rng_state if rng_state is not None else torch.get_rng_state())
    steps = [oracle.advance(own, grads) for own, grads in fed]
    inputs = [step.inputs for step in steps]
    return Gradients(inputs if several else inputs[0], steps[-1].params)


def assert_matches_autograd(  # noqa: PLR0913 (stage, arguments and output gradients are what a backward is about)
    backward: Backward | Gradients | Sequence[Any] | Tensor | None,
    stage: nn.Module,
    args: Any,
    output_grads: Any = None,
    *,
    loss_fn: LossFn | None = None,
    rng_state: Tensor | None = None,
) -> None:
    """Compare a backward, whatever it is, with plain autograd by the kit's numeric rule.

    ``backward`` is one of

    - a callable ``backward(stage, args, output_grads)`` that runs forward and backward of one micro-batch on ``stage``
      itself and returns the input gradients, or None where it leaves them in ``.grad`` of the arguments. Parameter
      gradients are compared after every micro-batch;
    - the input gradients that some backward has returned: one entry per argument, or a list of such tuples for several
      micro-batches. Parameter gradients are read from ``.grad``, and taken to have been None before;
    - :class:`Gradients`, where parameter gradients are somewhere else (``main_grad``);
    - None: everything is read from ``.grad``.

    ``args``, ``output_grads``, ``loss_fn`` and ``rng_state`` are those of :func:`autograd_gradients`. A stage that
    draws random numbers needs ``rng_state``, unless ``backward`` is a callable. Raises :class:`GradientMismatchError`,
    an ``AssertionError``, that names every wrong tensor by path with the index of its worst element, what was expected
    there, what came, error, bound and headroom.
    """
    __tracebackhide__ = True
    fed = _pairs(args, output_grads)
    before = torch.get_rng_state() if rng_state is None else rng_state
    oracle = _Oracle(stage, loss_fn, before, prior=callable(backward))
    if callable(backward):
        steps = _run(backward, stage, fed, before)
    else:
        steps = _given(backward, stage, args, len(fed))
    findings: list[Finding] = []
    for mb, ((own, grads), got) in enumerate(zip(fed, steps, strict=True)):
        wanted = oracle.advance(own, grads)
        if wanted.drew and rng_state is None and not callable(backward):
            msg = (
                f"{type(stage).__name__} draws random numbers, so its forward cannot be run again as it was; pass "
                "rng_state=torch.get_rng_state() as it was before the forward, or a callable that runs the backward"
            )
            raise ValueError(msg)
        told = {finding.where for finding in findings}
        findings += [finding for finding in _compare(mb, got, wanted, oracle) if finding.where not in told]
    if findings:
        where = f"{type(stage).__name__} ({oracle.place})"
        count = f"{len(findings)} gradients differ" if len(findings) > 1 else "1 gradient differs"
        raise GradientMismatchError("\n".join([f"{count} from plain autograd on {where}:", *map(str, findings)]))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Gradients after one micro-batch; ``params`` is None where they are not known before the last one."""

    inputs: InputGrads
    params: Mapping[str, Tensor | None] | None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What plain autograd gives after one micro-batch."""

    inputs: InputGrads
    params: dict[str, Tensor | None]
    drew: bool


class _Oracle:
    """Plain autograd on a copy of a stage, micro-batch after micro-batch, and in float64 where that is asked for."""

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
    def place(self) -> str:
        """The dtypes and devices of the stage's parameters, for a message."""
        found = sorted({f"{str(p.dtype).removeprefix('torch.')} on {p.device}" for p in self.copy.parameters()})
        return ", ".join(found) or "no parameters"

    def advance(self, args: tuple[Any, ...], output_grads: Tree) -> _Wanted:
        """Run the next micro-batch."""
        mb = len(self._fed)
        self._fed.append((args, output_grads))
        own = _fresh(args, self._original, self.copy)
        if self.wide:
            own = tuple(_widened_leaf(arg) for arg in own)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.rng)
            outputs = self._session.forward(mb, own)
            drew = not torch.equal(torch.get_rng_state(), self.rng)
            self.rng = torch.get_rng_state()
        _refuse_structure(outputs, output_grads, self._loss_fn)
        grads = map_leaves(widen, output_grads) if self.wide else output_grads
        inputs = self._session.backward(mb, None if grads is None else as_tuple(grads))
        params = {name: None if g is None else g.clone() for name, g in self._session.param_grads().items()}
        return _Wanted(inputs, params, drew)

    @cached_property
    def _in_float64(self) -> _Oracle:
        """The same in float64 on the CPU, with gradients of one micro-batch at a time."""
        oracle = _Oracle(self._original, self._loss_fn, self._start, wide=True)
        widened(oracle.copy)
        return oracle

    def in_float64(self, mb: int) -> list[_Wanted]:
        """Return the gradients in float64 of the micro-batches up to ``mb``, each alone."""
        oracle, found = self._in_float64, self._found64
        while len(found) <= mb:
            oracle.copy.zero_grad()
            found.append(oracle.advance(*self._fed[len(found)]))
        return found[: mb + 1]

    @cached_property
    def _found64(self) -> list[_Wanted]:
        return []

    def expected_param(self, name: str, mb: int) -> Expected:
        """Return what a parameter's gradient is in float64 after ``mb``."""
        expected = Expected()
        expected.add(widen(self._prior[name]))
        for wanted in self.in_float64(mb):
            expected.add(wanted.params[name])
        return expected


def _with_target(loss_fn: LossFn | None) -> Callable[[Tree, Tree], Tensor] | None:
    return None if loss_fn is None else lambda outputs, _: loss_fn(outputs)


def _widened_leaf(arg: Any) -> Any:
    """Return a float64 leaf that needs a gradient where ``arg`` does; a parameter is widened in the stage itself."""
    if not isinstance(arg, Tensor) or isinstance(arg, nn.Parameter):
        return arg
    return widen(arg).requires_grad_(arg.requires_grad)


def _pairs(args: Any, output_grads: Any) -> list[tuple[tuple[Any, ...], Tree]]:
    """Return arguments and output gradients per micro-batch; raise where the two lists differ in length."""
    several = args if isinstance(args, list) else [args]
    if isinstance(args, list) and output_grads is not None:
        if not isinstance(output_grads, list) or len(output_grads) != len(args):
            what = f"{len(output_grads)} entries" if isinstance(output_grads, list) else type(output_grads).__name__
            msg = f"args is a list of {len(args)} micro-batches, and output_grads has {what}; expected one per micro-batch"
            raise ValueError(msg)
        grads = output_grads
    else:
        grads = [output_grads] * len(several)
    if not several:
        msg = "args is an empty list; expected the arguments of one micro-batch or more"
        raise ValueError(msg)
    return [(own if isinstance(own, tuple) else (own,), grad) for own, grad in zip(several, grads, strict=True)]


def _fresh(args: tuple[Any, ...], stage: nn.Module, own: nn.Module) -> tuple[Any, ...]:
    """Return copies of ``args``: new leaves, one for a tensor passed twice, ``own``'s parameter for one of ``stage``."""
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
    """Raise ``ValueError`` where the gradients do not mirror the outputs."""
    if loss_fn is not None or output_grads is None:
        found = tensors(outputs)
        if loss_fn is None and (len(found) != 1 or found[0].dim()):
            shapes = [tuple(tensor.shape) for tensor in found]
            msg = f"output_grads is missing for outputs of shapes {shapes}; without it the stage must return one 0-d loss"
            raise ValueError(msg)
        return
    if len(as_tuple(outputs)) != len(as_tuple(output_grads)):
        msg = f"{len(as_tuple(output_grads))} output gradients for {len(as_tuple(outputs))} outputs; expected one or None each"
        raise ValueError(msg)


def _run(
    backward: Backward, stage: nn.Module, fed: Sequence[tuple[tuple[Any, ...], Tree]], rng_state: Tensor
) -> Iterator[_Seen]:
    """Call ``backward`` once per micro-batch, each forward with the random numbers that the oracle will draw too."""
    rng = rng_state
    for args, grads in fed:
        own = _fresh(args, stage, stage)
        theirs = map_leaves(lambda grad: grad.clone() if isinstance(grad, Tensor) else grad, grads)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(rng)
            returned = backward(stage, own, theirs)
            rng = torch.get_rng_state()
        params = {name: None if p.grad is None else p.grad.clone() for name, p in stage.named_parameters()}
        yield _Seen(_input_grads(returned, own), params)


def _input_grads(returned: Any, args: tuple[Any, ...]) -> InputGrads:
    """Return one entry per argument: what was returned, or ``.grad`` where nothing was."""
    if returned is None:
        return tuple(arg.grad if isinstance(arg, Tensor) else None for arg in args)
    entries = (returned,) if isinstance(returned, Tensor) else returned
    if not isinstance(entries, (tuple, list)) or len(entries) != len(args):
        what = f"{len(entries)} entries" if isinstance(entries, (tuple, list)) else type(entries).__name__
        msg = f"the backward gave {what} for {len(args)} arguments; expected one gradient or None per argument"
        raise TypeError(msg)
    return tuple(entries)


def _given(given: Any, stage: nn.Module, args: Any, count: int) -> Iterator[_Seen]:
    """Return what somebody else's backward has left; parameter gradients are known after the last micro-batch only."""
    params: Mapping[str, Tensor | None] = {name: parameter.grad for name, parameter in stage.named_parameters()}
    if isinstance(given, Gradients):
        given, params = given.inputs, given.params or params
    fed = args if isinstance(args, list) else [args]
    inputs = given if isinstance(args, list) and given is not None else [given] * count
    if not isinstance(inputs, (list, tuple)) or len(inputs) != count:
        msg = f"input gradients of {len(inputs)} micro-batches for {count} micro-batches; expected one tuple for each"
        raise ValueError(msg)
    for mb, (own, found) in enumerate(zip(fed, inputs, strict=True)):
        entries = _input_grads(found, own if isinstance(own, tuple) else (own,))
        yield _Seen(entries, params if mb == count - 1 else None)


def _compare(mb: int, got: _Seen, wanted: _Wanted, oracle: _Oracle) -> Iterator[Finding]:
    trial = Trial(stages=(), program=f"F{mb} B{mb}")
    materials = Materials(trial, dtype=torch.float64, device=torch.device("cpu"), seed=0)
    evidence = Evidence(trial, Capabilities(), materials, (), Observation())
    step = Step(Action("B", mb), mb)
    for slot, expected in enumerate(wanted.inputs):

        def input64(slot: int = slot) -> tuple[Tensor | None, Partials]:
            return oracle.in_float64(mb)[mb].inputs[slot], Partials()

        yield from compare(evidence, step, f"input {slot}", got.inputs[slot], expected, input64)
    for name, expected in wanted.params.items() if got.params is not None else ():

        def param64(name: str = name) -> tuple[Tensor | None, Partials]:
            found = oracle.expected_param(name, mb)
            return found.total, found.partials

        yield from compare(evidence, step, name, (got.params or {}).get(name), expected, param64)
