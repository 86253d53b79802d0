"""Drafts: the plan of a trial, with one field per setting of a dimension's value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from gradconform.covering.dimension import Dimension
from gradconform.fixtures.planned_stages import Plan, planned_case
from gradconform.fixtures.planned_stages.layers import Gain
from gradconform.trial.trial import Trial

from .orders import program_of

#: A row of the array: one word per dimension, by the dimension's name.
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A trial in words.

    The first fields are those of :func:`~gradconform.contract.space.orders.program_of`. Those of
    :class:`~gradconform.fixtures.planned_stages.Plan` follow, and last those of
    :class:`~gradconform.trial.trial.Trial`.
    """

    order: str = "full-in-flight"
    count: int = 2
    steps: str = "one"
    caller: str = "keeps"
    second_stage: bool = False
    one_module: bool = False
    ragged: bool = False
    forwards: str = "none"
    again: bool = False
    entry: str = "one"
    layers: str = "plain"
    graph: str = "plain"
    exit: str = "tensor"
    size: str = "35"
    values: str = "usual"
    gain: Gain = ""
    rows: int = 0
    arguments: str = "contiguous"
    transposed: bool = False
    loss: bool = False
    output_grads: str = "normal"
    prior_grads: bool = False
    same_args: bool = False
    watch: frozenset[str] = frozenset()
    modes: frozenset[str] = frozenset()
    altering: Literal["", "scale", "move"] = ""
    received: str = ""
    tracked_grads: bool = False
    kept_lists: bool = False
    weights: str = ""
    upstream: bool = False

    def trial(self) -> Trial:
        """Return the trial."""
        case = planned_case(Plan(**{field.name: getattr(self, field.name) for field in fields(Plan)}))
        return Trial(
            stages=(case, case) if self.second_stage else (case,),
            program=program_of(
                self.order,
                self.count,
                self.steps,
                self.caller,
                second_stage=self.second_stage,
                forwards=self.forwards,
                again=self.again,
                finish=self.upstream,
            ),
            loss=self.loss,
            output_grads=self.output_grads,
            prior_grads=self.prior_grads,
            same_args=self.same_args,
            watch=self.watch,
            modes=self.modes,
            altering=self.altering,
            one_module=self.one_module,
            ragged=self.ragged,
            received=self.received,
            tracked_grads=self.tracked_grads,
            kept_lists=self.kept_lists,
            weights=self.weights,
            upstream=self.upstream,
        )


def draft_of(row: Row, dimensions: Iterable[Dimension]) -> Draft:
    """Return the draft of a row."""
    values: dict[str, Any] = {}
    for dimension in dimensions:
        values |= dimension.value(row[dimension.name]).sets
    return Draft(**values)
