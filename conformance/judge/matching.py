"""Compares a user's own backward with plain autograd on the same stage, arguments and output gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.adapter import Tree
from gradconform.drive.user_stage import Gradients, InputGrads, LossFn, UserStage, Wanted, fresh, pairs
from gradconform.results import NonConformingError
from gradconform.text.counts import count
from gradconform.tolerance import sizes
from gradconform.trees import map_leaves

from .finding import Finding, findings_in
from .values import Known, compare

#: Runs forward and backward of one micro-batch: ``backward(stage, args, output_grads)`` returns the input gradients.
Backward = Callable[[nn.Module, tuple[Any, ...], Tree], Any]


class GradientMismatchError(NonConformingError):
    """A gradient differs from plain autograd's; the message names every wrong tensor with its numbers."""

    __module__ = "gradconform"  # its public name, which tracebacks show


def assert_matches_autograd(  # noqa: PLR0913 (stage, arguments and output gradients define a backward)
    backward: Backward | Gradients | Sequence[Any] | Tensor | None,
    stage: nn.Module,
    args: Any,
    output_grads: Any = None,
    *,
    loss_fn: LossFn | None = None,
    rng_state: Tensor | None = None,
) -> None:
    """Raise an error unless a backward's gradients match plain autograd's by the kit's numeric rule.

    ``backward`` is one of

    - a callable ``backward(stage, args, output_grads)`` that runs forward and backward of one micro-batch on ``stage``
      itself. It returns the input gradients, or None if it leaves them in ``.grad`` of the arguments. Parameter
      gradients are compared after every micro-batch;
    - the input gradients that a backward has returned: one entry per argument, or a list of such tuples for several
      micro-batches. Parameter gradients are read from ``.grad``, and taken to have been None before;
    - :class:`Gradients`, if parameter gradients are elsewhere (``main_grad``);
    - None: everything is read from ``.grad``.

    ``args``, ``output_grads``, ``loss_fn`` and ``rng_state`` are those of :func:`autograd_gradients`. A stage that
    draws random numbers needs ``rng_state``, unless ``backward`` is a callable. Raises :class:`GradientMismatchError`,
    an ``AssertionError``. It names every wrong tensor by path with the index of its worst element, the expected and the
    actual value there, error, bound and error/bound.
    """
    __tracebackhide__ = True
    fed = pairs(args, output_grads)
    before = torch.get_rng_state() if rng_state is None else rng_state
    plain = UserStage(stage, loss_fn, before, prior=callable(backward))
    steps = _run(backward, stage, fed, before) if callable(backward) else _given(backward, stage, args, len(fed))
    findings: list[Finding] = []
    for mb, ((own, grads), got) in enumerate(zip(fed, steps, strict=True)):
        wanted = plain.advance(own, grads)
        if wanted.drew and rng_state is None and not callable(backward):
            msg = (
                f"{type(stage).__name__} draws random numbers, so its forward cannot be repeated. Pass rng_state, "
                "the value of torch.get_rng_state() before the forward, or a callable that runs the backward"
            )
            raise ValueError(msg)
        reported = {finding.where for finding in findings}
        findings += [finding for finding in _compare(mb, got, wanted, plain) if finding.where not in reported]
    if findings:
        where = f"{type(stage).__name__} ({plain.dtypes})"
        differ = f"{count(len(findings), 'gradient')} {'differs' if len(findings) == 1 else 'differ'}"
        raise GradientMismatchError("\n".join([f"{differ} from plain autograd on {where}:", *map(str, findings)]))


@dataclass(frozen=True, slots=True)
class _Seen:
    """Gradients after one micro-batch; ``params`` is None if they are known only after the last one."""

    inputs: InputGrads
    params: Mapping[str, Tensor | None] | None


def _run(
    backward: Backward, stage: nn.Module, fed: Sequence[tuple[tuple[Any, ...], Tree]], rng_state: Tensor
) -> Iterator[_Seen]:
    """Yield the gradients after each call of ``backward``, with the same random numbers as the oracle will draw."""
    rng = rng_state
    for args, grads in fed:
        own = fresh(args, stage, stage)
        theirs = map_leaves(lambda grad: grad.clone() if isinstance(grad, Tensor) else grad, grads)
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(rng)
            returned = backward(stage, own, theirs)
            rng = torch.get_rng_state()
        params = {name: None if p.grad is None else p.grad.clone() for name, p in stage.named_parameters()}
        yield _Seen(_input_grads(returned, own), params)


def _input_grads(returned: Any, args: tuple[Any, ...]) -> InputGrads:
    """Return one entry per argument: the returned value, or ``.grad`` if nothing was returned."""
    if returned is None:
        return tuple(arg.grad if isinstance(arg, Tensor) else None for arg in args)
    entries = (returned,) if isinstance(returned, Tensor) else returned
    if not isinstance(entries, (tuple, list)) or len(entries) != len(args):
        what = count(len(entries), "entry") if isinstance(entries, (tuple, list)) else type(entries).__name__
        msg = f"the backward gave {what} for {count(len(args), 'argument')}; expected one gradient or None per argument"
        raise TypeError(msg)
    return tuple(entries)


def _given(given: Any, stage: nn.Module, args: Any, count: int) -> Iterator[_Seen]:
    """Yield the gradients left by another backward; parameter gradients are known only after the last micro-batch."""
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


def _compare(mb: int, got: _Seen, wanted: Wanted, plain: UserStage) -> Iterator[Finding]:
    action = f"B{mb}"
    for slot, expected in enumerate(wanted.inputs):

        def input64(slot: int = slot) -> Known:
            return Known(plain.in_float64(mb)[mb].inputs[slot], terms=lambda: sizes([plain.terms(mb)[mb].inputs[slot]]))

        yield from findings_in(compare("input gradient", f"input {slot}", action, got.inputs[slot], expected, input64))
    for name, expected in wanted.params.items() if got.params is not None else ():

        def param64(name: str = name) -> Known:
            found = plain.expected_param(name, mb)
            return Known(found.total, found.partials, lambda: sizes(wanted.params[name] for wanted in plain.terms(mb)))

        yield from findings_in(
            compare("parameter gradient", name, action, (got.params or {}).get(name), expected, param64)
        )
