"""Compositions: the plan of a training step, with one field per setting of a dimension's value."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import starmap
from pathlib import Path
from typing import Literal

from gradconform.covering.rows import named
from gradconform.covering.search import array
from gradconform.covering.space import Space, Words
from gradconform.fixtures.schedules.from_torch import of_torch
from gradconform.fixtures.schedules.order import placed_actions
from gradconform.requirements.clause import Clause
from gradconform.runtime import ContextStyle, DataParallel, ExpertStyle, Precision, Reduction

from .dimensions import ALONE, CONSTRAINTS, DIMENSIONS, EIGHT, QUICK, RARE

#: The acts of a training step, in sequence; a rank is judged after each of them.
Act = Literal["train", "accumulate", "evaluate", "zero_grad", "clip", "update"]
#: How tokens are routed to experts.
Routing = Literal["even", "uneven", "idle-rank", "idle-expert", "dropped"]

#: The rows that contain every pair of values, frozen in a file: for two ranks or four.
ROWS = Path(__file__).with_name("rows.json")


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The parts of a training step; values of the dimensions set the fields."""

    pipeline_ranks: int = 1
    replicas: int = 1
    schedule: str = "1F1B"
    per_rank: int = 1
    data_parallel: DataParallel = "none"
    microbatches: int = 8
    ragged: bool = False
    lengths: bool = False
    reduction: Reduction = "mean"
    auxiliary: bool = False
    steps: tuple[Act, ...] = ("train",)
    weights: Literal["all", "frozen-stage", "frozen-layers", "tied"] = "all"
    layers: Literal["plain", "checkpoint", "reentrant-checkpoint", "dropout", "batch-norm", "selective-checkpoint"] = (
        "plain"
    )
    keyword: bool = False
    hooked: bool = False
    tensor_ranks: int = 1
    tensor_parallel: Literal["whole-layers", "column-row", "sequence", "vocabulary"] = "whole-layers"
    precision: Precision = "unmixed"
    compiled: Literal["", "aot_eager", "inductor"] = ""
    experts: Literal[ExpertStyle, ""] = ""
    routing: Routing = "even"
    use: Literal["", "replica", "microbatch", "step", "never"] = ""
    context: ContextStyle = "whole"
    counted: Literal["some", "all", "first-half"] = "some"
    predicts_two: bool = False

    @property
    def has_auxiliary(self) -> bool:
        """Return whether stages have losses of their own."""
        return self.auxiliary or bool(self.experts)

    @property
    def batches(self) -> int:
        """Return the number of different batches of a step: one if replicas share its sequences."""
        return 1 if self.context != "whole" else self.replicas

    @property
    def ranks(self) -> int:
        """Return the number of processes."""
        return self.pipeline_ranks * self.replicas * self.tensor_ranks

    @property
    def stages(self) -> int:
        """Return the number of stages of the whole model."""
        return self.pipeline_ranks * self.per_rank

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the acts' names in findings, in order."""
        return tuple(f"act {number} ({act})" for number, act in enumerate(self.steps, 1))

    @cached_property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """Return the cells of the schedule, a row for each pipeline rank."""
        if self.schedule == "CSV":
            return tuple(self._row_of_file(rank) for rank in range(self.pipeline_ranks))
        made = of_torch(
            self.schedule, ranks=self.pipeline_ranks, stages_per_rank=self.per_rank, microbatches=self.microbatches
        )
        return made.rows

    def _row_of_file(self, rank: int) -> tuple[str, ...]:
        """Return a rank's row in an order that no class of torch makes: the last micro-batch's backward is first."""
        stages, mbs = range(rank, self.stages, self.pipeline_ranks), range(self.microbatches)
        forwards = [f"{stage}F{mb}" for stage in stages for mb in mbs]
        back = [(stage, mb) for stage in reversed(stages) for mb in reversed(mbs)]
        return (*forwards, *(f"{stage}{letter}{mb}" for letter in "IW" for stage, mb in back))

    @property
    def placement(self) -> tuple[tuple[int, ...], ...]:
        """Return the stages of each pipeline rank."""
        return tuple(tuple(sorted({one.action.stage for one in row})) for row in placed_actions(self.rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCase(Clause):
    """One check of training steps: a row of the space, a word per dimension.

    ``target`` is the runtime that runs it, if that is not the job's.
    """

    row: Words
    target: str = ""

    @property
    def composition(self) -> Composition:
        """Return the composition that the words define."""
        made = Composition()
        for dimension, word in zip(DIMENSIONS, self.row, strict=True):
            made = replace(made, **dimension.value(word).sets)
        return made

    @property
    def special(self) -> dict[str, str]:
        """Return the row's non-default words by dimension."""
        return {one.name: word for one, word in zip(DIMENSIONS, self.row, strict=True) if word != one.values[0].word}

    @property
    def tried(self) -> str:
        """Return the row's non-default values, as the first line of a message."""
        return ", ".join(f"{name}={word}" for name, word in self.special.items()) or "the plainest training step"


@cache
def step_cases(profile: str) -> tuple[StepCase, ...]:
    """Return the checks of a profile, fewest ranks first.

    Standard has those of quick, and all pairs; full has those of standard, and some on eight ranks.
    """
    rows = [tuple(row) for row in json.loads(ROWS.read_text(encoding="utf-8"))["pairs"]]
    placed = _with_names({"quick": QUICK, "standard": QUICK | ALONE, "full": QUICK | ALONE | EIGHT}[profile])
    if profile != "quick":
        placed |= {f"pairs.{name}": row for name, row in named(DIMENSIONS, rows).items()}
    return tuple(sorted(starmap(_case, placed.items()), key=lambda case: case.composition.ranks))


def _with_names(alone: Mapping[str, Mapping[str, str]]) -> dict[str, Words]:
    """Return the rows of compositions with names, from their non-default values."""
    plain = {dimension.name: dimension.values[0].word for dimension in DIMENSIONS}
    return {name: tuple({**plain, **special}.values()) for name, special in alone.items()}


def _case(name: str, row: Words) -> StepCase:
    phrases = [one.value(word).phrase for one, word in zip(DIMENSIONS, row, strict=True) if word != one.values[0].word]
    with_ = f", with {'; '.join(phrases)}" if phrases else ""
    return StepCase(
        id=f"step.{name}",
        level="MUST",
        requirement=f"A training step MUST give what one plain process gives{with_}.",
        why="A step that is wrong by a factor, a rank or a micro-batch still trains, but to a worse model.",
        row=row,
    )


def unclaimed_values(case: StepCase, claims: Mapping[str, Collection[str]]) -> str:
    """Return which values of a row a runtime does not claim, in words; empty if it claims all of them."""
    return ", ".join(
        f"{one.name}={word}"
        for one, word in zip(DIMENSIONS, case.row, strict=True)
        if one.name in claims and word not in words_of(claims[one.name])
    )


def words_of(claimed: Collection[str]) -> frozenset[str]:
    """Return the words of a claim, which may be one text with several words."""
    return frozenset(claimed.split() if isinstance(claimed, str) else claimed)


def with_what_is_new(frozen: Sequence[Words]) -> list[Words]:
    """Return frozen rows with defaults in newer dimensions, and new rows for the pairs that they lack.

    So an addition changes no check's id or row. Values that many runtimes do not claim are in rows of their own, so
    that these runtimes lose no pair of other values. Compositions with names have their pairs already. It takes
    allpairspy and some seconds.
    """
    space = Space(DIMENSIONS, CONSTRAINTS)
    rows = [(*row, *(one.values[0].word for one in DIMENSIONS[len(row) :])) for row in frozen]
    others = [row for row in _with_names(QUICK | ALONE).values() if space.fits(enumerate(row))]
    for count in reversed(range(len(RARE) + 1)):
        left_out = frozenset[str]().union(*RARE[:count])
        begun = [row for row in [*others, *rows] if not left_out & space.claims_of(enumerate(row))]
        rows += array(space.without(left_out).dimensions, CONSTRAINTS, begun)[len(begun) :]
    return rows
