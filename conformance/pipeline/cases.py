"""The checks of a pipeline: every requested schedule, in every scenario that it can run in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gradconform.fixtures.schedules import Schedule, ScheduleError, read_csv
from gradconform.fixtures.schedules.from_torch import NAMES, available, of_torch
from gradconform.requirements.clause import Clause, word_of
from gradconform.text.counts import count

Step = Literal["train", "eval", "zero_grad"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """The use of a pipeline: the steps in order, the kind of stages, and the construction of the schedule.

    ``alone`` gives each rank a pipeline of its own with all stages (one, if the schedule takes one).
    """

    name: str
    what: str
    why: str
    steps: tuple[Step, ...] = ("train", "train")
    stages: Literal["plain", "frozen-first", "tied", "gated"] = "plain"
    scale_grads: bool = False
    alone: bool = False

    def requirement(self, schedule: str) -> str:
        """Return the requirement sentence for a schedule, e.g. ``1F1B (2 ranks, …)``."""
        plain = "what one plain backward of the whole model gives"
        return f"A pipeline in the order of {schedule} MUST give {plain} {self.what}."


SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="two-steps",
        what="in two steps whose gradients add up",
        why="The second step meets the gradients and caches that the first one left.",
    ),
    Scenario(
        name="zero-grad",
        what="in two steps with zero_grad between them",
        why="zero_grad sets gradients to None, so the second step starts as the first one did.",
        steps=("train", "zero_grad", "train"),
    ),
    Scenario(
        name="eval-then-train",
        what="in a step after an evaluation",
        why="An evaluation leaves outputs without graphs, which must not reach the backward.",
        steps=("eval", "train"),
    ),
    Scenario(
        name="scaled",
        what="where gradients are divided by the number of micro-batches",
        why="Scaling happens once, after the last backward of a step.",
        steps=("train",),
        scale_grads=True,
    ),
    Scenario(
        name="frozen-first",
        what="with a frozen first stage",
        why="Its output needs no gradient, so only the next stages have a backward.",
        stages="frozen-first",
    ),
    Scenario(
        name="tied",
        what="with a weight that every stage uses twice",
        why="Both uses add to one gradient, in B, or in I and W.",
        stages="tied",
    ),
    Scenario(
        name="keyword-arguments",
        what="with a keyword argument on every stage",
        why="Keyword arguments follow the positional ones among the inputs of a backward.",
        stages="gated",
    ),
    Scenario(
        name="single-rank",
        what="where one rank has all stages",
        why="A first stage that is also the last has a loss and sends no input gradient.",
        alone=True,
    ),
)

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Clause):
    """One check of a run: a schedule in a scenario.

    ``schedule`` is torch's name of a class, or the path of a CSV file (``from_file``). ``rows`` has the cells of each
    rank and defines its stages. ``size`` is the schedule with its size in words.
    """

    schedule: str
    from_file: bool
    size: str
    scenario: str
    rows: tuple[tuple[str, ...], ...]
    microbatches: int

    @property
    def tried(self) -> str:
        """Return the schedule, as the first line of a message."""
        return f"schedule {self.size}"


#: Schedules with one stage per rank, and those with the last stages on the first rank: exactly two per rank.
_ONE_STAGE = frozenset({"GPipe", "1F1B"})


def cases_of(
    schedules: Sequence[str], *, ranks: int, stages_per_rank: int | None = None, microbatches: int | None = None
) -> tuple[Case, ...]:
    """Return the cases of schedules: torch's names, or paths of CSV files.

    ``stages_per_rank`` defaults to 2 if a schedule takes several, and ``microbatches`` to four per rank. Raises
    :class:`~gradconform.fixtures.schedules.order.ScheduleError` (a ``ValueError``) if a name, a size or a file gives no
    legal schedule, and :class:`~gradconform.torch_releases.names.UnavailableError` if torch lacks the schedule.
    """
    cases: list[Case] = []
    for name in dict.fromkeys(schedules):
        if name.endswith(".csv"):
            cases += _of_file(name, ranks)
        else:
            cases += _of_class(name, ranks, stages_per_rank, microbatches or 4 * ranks)
    return tuple(cases)


def lacking(schedules: Sequence[str]) -> dict[str, str]:
    """Return the schedules that the torch of this process lacks, each with the reason."""
    reasons = {name.lower(): reason for name, reason in available().items() if reason}
    return {name: reasons[name.lower()] for name in schedules if name.lower() in reasons}


def clauses_of(name: str) -> tuple[Clause, ...]:
    """Return the checks of torch's schedule ``name``, independent of its size."""
    return tuple(_clause(name, name, scenario) for scenario in SCENARIOS)


def _of_file(path: str, ranks: int) -> list[Case]:
    schedule = read_csv(path)
    if schedule.ranks != ranks:
        msg = f"schedule {path!r}: expected {count(ranks, 'row')}, one per rank of --ranks; got {schedule.ranks}"
        raise ScheduleError(msg)
    # A pipeline on one rank would run another schedule than the file's.
    return [
        _case(schedule, scenario, str(Path(path).resolve()), from_file=True)
        for scenario in SCENARIOS
        if not scenario.alone
    ]


def _of_class(name: str, ranks: int, stages_per_rank: int | None, microbatches: int) -> list[Case]:
    known = {one.lower(): one for one in NAMES}
    if name.lower() not in known:
        msg = f"unknown schedule {name!r}; expected one of {', '.join(NAMES)}, all, or the path of a CSV file"
        raise ScheduleError(msg)
    name = known[name.lower()]
    per_rank = stages_per_rank or (1 if name in _ONE_STAGE else 2)
    whole = of_torch(name, ranks=ranks, stages_per_rank=per_rank, microbatches=microbatches)
    alone = of_torch(name, ranks=1, stages_per_rank=per_rank, microbatches=microbatches)
    return [_case(alone if scenario.alone else whole, scenario, name, from_file=False) for scenario in SCENARIOS]


def _case(schedule: Schedule, scenario: Scenario, named: str, *, from_file: bool) -> Case:
    size = f"{schedule.name} ({schedule.size})"
    clause = _clause(schedule.name, size, scenario)
    return Case(
        id=clause.id,
        level=clause.level,
        requirement=clause.requirement,
        why=clause.why,
        schedule=named,
        from_file=from_file,
        size=size,
        scenario=scenario.name,
        rows=schedule.rows,
        microbatches=schedule.microbatches,
    )


def _clause(name: str, size: str, scenario: Scenario) -> Clause:
    return Clause(
        id=f"pipeline.{word_of(name)}.{scenario.name}",
        level="MUST",
        requirement=scenario.requirement(size),
        why=scenario.why,
    )
