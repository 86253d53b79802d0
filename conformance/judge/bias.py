"""Judges the mean error over many draws of one trial: finds bias and spread that no single tensor shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.drive.evidence import Evidence
from gradconform.results import Sort

from .all_trials import Pooled
from .finding import BIT_EQUAL, Finding, Judged, Measured, findings_in
from .mean_rule import Errors, in_series, judge_shift, judge_spread, settled
from .values import same_bits

#: The name of all parameter gradients of a draw together.
TOGETHER = "all parameter gradients"

#: A gradient: the sort of tensor, its name, the implementation's value, plain autograd's, and reference64's if any.
_Compared = tuple[Sort, str, Tensor, Tensor, Tensor | None]


@dataclass(frozen=True, slots=True)
class Draw:
    """The errors of one draw: those of every gradient that is not bit-equal to plain autograd's."""

    dtype: torch.dtype
    errors: tuple[tuple[Sort, str, Errors], ...]


def read(evidence: Evidence) -> Draw:
    """Return the errors of a trial, in the first of its repeats: one entry per input and per parameter."""
    found: dict[tuple[Sort, str], list[Errors]] = {}
    for sort, where, got, oracle, reference in _compared(evidence):
        errors = Errors.of(got, oracle, oracle if reference is None else reference)
        if errors is not None:
            found.setdefault((sort, where), []).append(errors)
    single = [(sort, where, Errors.together(several)) for (sort, where), several in found.items()]
    params = [errors for sort, _, errors in single if sort == "parameter gradient"]
    together: list[tuple[Sort, str, Errors]] = [("thing", TOGETHER, Errors.together(params))] if params else []
    return Draw(evidence.materials.dtype, (*single, *together))


def _compared(evidence: Evidence) -> Iterator[_Compared]:
    """Yield the gradients that are not bit-equal to plain autograd's; parameter gradients as after the last action."""
    exact = _is_exact(evidence.materials.dtype)
    for step in evidence.observation.steps:
        wanted, stage, mb = evidence.oracle_step(step), step.action.stage, step.action.mb
        for slot, (got, oracle) in enumerate(zip(step.input_grads or (), wanted.input_grads or (), strict=False)):
            if (pair := _differing(got, oracle)) is not None:
                reference = None if exact else evidence.reference(stage, mb).inputs[slot]
                yield "input gradient", f"input {slot}", *pair, reference
    last = evidence.observation.steps[-1]
    for name, oracle in evidence.oracle_step(last).param_grads.items():
        if (pair := _differing(last.param_grads.get(name), oracle)) is not None:
            yield "parameter gradient", name, *pair, None if exact else evidence.expected_param(name, last).total


def _is_exact(dtype: torch.dtype) -> bool:
    """Return whether plain autograd in a dtype is its own reference."""
    return dtype == torch.float64


def _differing(got: Tensor | None, oracle: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return both if they are dense tensors of real numbers, of one shape, and not bit-equal."""
    if not isinstance(got, Tensor) or not isinstance(oracle, Tensor) or not oracle.is_floating_point():
        return None
    dense = got.layout is oracle.layout is torch.strided
    return (got, oracle) if dense and got.shape == oracle.shape and not same_bits(got, oracle) else None


def judge(draws: Sequence[Draw]) -> Judged:
    """Yield every gradient whose mean error over the draws is a bias or is wider than rounding.

    Parameters that show no error alone may show one together. If a single parameter shows it, only that one is
    reported.
    """
    series = in_series(draw.errors for draw in draws)
    together = series.pop(("thing", TOGETHER), None)
    judged = [seen for (sort, where), errors in series.items() for seen in _judge_series(sort, where, errors, draws)]
    if together is not None and not any(finding.sort == "parameter gradient" for finding in findings_in(judged)):
        judged += _judge_series("thing", TOGETHER, together, draws)
    yield from judged or [BIT_EQUAL]


def _judge_series(sort: Sort, where: str, errors: Sequence[Errors], draws: Sequence[Draw]) -> Judged:
    dtype = draws[0].dtype
    over = f"over {len(draws)} draws"
    error, bound, error_ratio = judge_shift(len(draws), errors, dtype)
    yield Measured(error_ratio)
    if error_ratio > 1.0:
        cause = Cause(Mistake.RELATIVE_ERROR, factors=(error,))
        text = (
            f"the mean error {over} is {error:+.3g} of its value, bound {bound:.3g}; each error alone is in its bound"
        )
        yield Finding("mismatch", where, "", text, abs(error), bound, error_ratio, cause, sort=sort)
    if _is_exact(dtype):  # plain autograd's own error is unknown there; cancelling terms have any relative error
        return
    error, bound, error_ratio = judge_spread(len(draws), errors, dtype)
    yield Measured(error_ratio)
    if error_ratio > 1.0:
        text = f"the root mean squared error {over} is {error:.3g} of its value, bound {bound:.3g}"
        yield Finding("mismatch", where, "", text, error, bound, error_ratio, sort=sort)


#: The rule of the mean, over the trials of a check that differ only in their draw.
BIAS = Pooled(read, judge, lambda draws, planned: settled(planned, sum(not draw.errors for draw in draws)))
