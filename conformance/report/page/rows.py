"""Results on a page: a row per check, device and dtype with its programs drawn, and the areas in numbers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradconform.contract.frozen import frozen
from gradconform.report.sentences import command_again, command_of_script
from gradconform.results import STATUSES, Place, Report, Result
from gradconform.trial.program import Action, ProgramError, parse

#: Of one action, and of the names beside the rows and below the last one, in pixels.
_CELL, _ROW, _NAMES, _FOOT = 30, 26, 62, 20

#: Letters of actions; all else is what happens around the stage, and stands in a row of its own.
_LETTERS = frozenset("FBIWG")


@dataclass(frozen=True, slots=True)
class Cell:
    """One action: where it stands, and whether it is the first wrong one."""

    text: str
    kind: str
    x: int
    y: int
    width: int
    wrong: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One program, and the first action of it at which something was wrong, if any. ``id`` is for the page."""

    id: str
    program: str
    wrong: str | None
    rows: tuple[tuple[str, int], ...]
    cells: tuple[Cell, ...]
    width: int
    height: int

    @property
    def label(self) -> str:
        """What a reader hears in place of the drawing."""
        return f"program {self.program}" + (f"; first wrong action: {self.wrong}" if self.wrong else "")


@dataclass(slots=True)
class Timelines:
    """The timelines of a page; one that several checks share is drawn once."""

    drawn: dict[tuple[str, str | None], Timeline] = field(default_factory=dict)

    def of(self, programs: Iterable[str], actions: Sequence[str]) -> list[Timeline]:
        """Return a timeline of each program; ``actions`` are those of the findings, in their order.

        A report does not say which of several programs a finding is of, so each that has the action is marked.
        """
        return [self._one(program, _first_wrong(program, actions)) for program in programs]

    def _one(self, program: str, wrong: str | None) -> Timeline:
        key = (program, wrong)
        if key not in self.drawn:
            self.drawn[key] = _draw(f"timeline-{len(self.drawn)}", program, wrong)
        return self.drawn[key]


def _first_wrong(program: str, actions: Sequence[str]) -> str | None:
    tokens = program.split()
    return min((action for action in actions if action in tokens), key=tokens.index, default=None)


def _draw(name: str, program: str, wrong: str | None) -> Timeline:
    actions = parse(program)
    rows = _lanes(actions)
    heights = {row: index * _ROW for index, row in enumerate(rows)}
    cells: list[Cell] = []
    left = _NAMES
    for action in actions:
        text = str(action)
        width = max(_CELL, 8 * len(text) + 10)
        first = text == wrong and not any(cell.wrong for cell in cells)
        kind = action.kind if action.kind in _LETTERS else "other"
        cells.append(Cell(text, kind, left, heights[_lane(action, rows)], width - 2, first))
        left += width
    height = len(rows) * _ROW + (_FOOT if wrong else 0)
    named = tuple(heights.items())
    return Timeline(id=name, program=program, wrong=wrong, rows=named, cells=tuple(cells), width=left, height=height)


def _lanes(actions: Sequence[Action]) -> list[str]:
    """Return the names of the rows: of the stages where there are several, else of the micro-batches."""
    inner = [action for action in actions if action.kind in _LETTERS]
    stages = sorted({action.stage for action in inner})
    if len(stages) > 1:
        named = [f"stage {stage}" for stage in stages]
    else:
        named = [f"mb {mb}" for mb in sorted({action.mb for action in inner})]
    return [*named, *(["around"] if len(inner) < len(actions) else [])]


def _lane(action: Action, rows: Sequence[str]) -> str:
    if action.kind not in _LETTERS:
        return "around"
    stage = f"stage {action.stage}"
    return stage if stage in rows else f"mb {action.mb}"


#: Where a status stands in the list.
_SEVERITY = ("error", "failed", "unexpectedly_passed", "waived", "not_run", "unsupported", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one run says of one check: the result, the commands that show it again, and its programs, drawn."""

    result: Result
    command: str | None
    script: str | None
    timelines: tuple[Timeline, ...]

    @property
    def unsure(self) -> bool:
        """Whether several programs are marked, of which the report does not say which one it was."""
        return sum(timeline.wrong is not None for timeline in self.timelines) > 1

    @property
    def elsewhere(self) -> str | None:
        """The first wrong action where no drawing has it: the end of a program, or one that is not known whole."""
        first = next((str(finding["action"]) for finding in self.result.findings if finding["action"]), None)
        return None if any(timeline.wrong for timeline in self.timelines) else first


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check on one device and dtype; ``told`` has one entry per run, None where a run has no result of it."""

    id: str
    check: str
    area: str
    cell: str
    level: str
    requirement: str
    severity: int
    told: tuple[Told | None, ...]

    @property
    def results(self) -> list[Result]:
        """The results of all runs that have one."""
        return [told.result for told in self.told if told is not None]

    @property
    def statuses(self) -> list[str]:
        """The statuses met in the runs, each once; ``absent`` stands for no result."""
        return list(dict.fromkeys("absent" if told is None else told.result.status for told in self.told))

    @property
    def differs(self) -> bool:
        """Whether the runs do not all say the same of it: another status, or a failure of another kind."""
        kinds = {None if told is None else (told.result.status, told.result.kind) for told in self.told}
        return len(kinds) > 1

    @property
    def headroom(self) -> float | None:
        """The largest ratio of error to bound that some run met."""
        return max((r.headroom for r in self.results if r.headroom is not None), default=None)

    @property
    def duration(self) -> float:
        """The longest time that some run took, in seconds."""
        return max(result.duration_s for result in self.results)


def anchor(place: Place) -> str:
    """Return the id of a row: the name as pytest shows it. An id of HTML has no white space."""
    return re.sub(r"\s+", "_", place.name)


def rows_of(reports: Sequence[Report], timelines: Timelines) -> list[Row]:
    """Return the rows of one report, or of several side by side, what needs a look first."""
    each = [{r.place: r for r in report.results} for report in reports]
    keys = dict.fromkeys(key for results in each for key in results)
    rows = [_row(key, reports, each, timelines) for key in keys]
    return sorted(rows, key=lambda row: row.severity)


def _row(
    place: Place,
    reports: Sequence[Report],
    each: Sequence[Mapping[Place, Result]],
    timelines: Timelines,
) -> Row:
    pairs = [(report, results.get(place)) for report, results in zip(reports, each, strict=True)]
    found = [result for _, result in pairs if result is not None]
    first = found[0]
    return Row(
        id=anchor(place),
        check=first.check,
        area=area_of(first.check),
        cell=cell_of(first),
        level=first.level,
        requirement=first.requirement,
        severity=min(map(_severity, found)),
        told=tuple(None if result is None else _told(report, result, timelines) for report, result in pairs),
    )


def _told(report: Report, result: Result, timelines: Timelines) -> Told:
    actions: list[Any] = [finding["action"] for finding in result.findings]
    return Told(
        result=result,
        command=command_again(report, result),
        script=command_of_script(report, result),
        timelines=tuple(timelines.of(programs_of(report, result), actions)),
    )


def _severity(result: Result) -> int:
    """Return the rank of a result in the list; among what failed, MUST stands before SHOULD."""
    return 2 * _SEVERITY.index(result.status) + (result.level != "MUST")


def area_of(check: str) -> str:
    """Return the first part of a check's id."""
    return check.partition(".")[0]


def cell_of(result: Result) -> str:
    """Return device and dtype, as text."""
    return f"{result.device} {result.dtype}"


@dataclass(frozen=True, slots=True)
class Tally:
    """The results of one area on one device in one dtype."""

    area: str
    cell: str
    counts: Counter[str] = field(default_factory=Counter)
    decided: bool = False

    @property
    def told(self) -> str:
        """All counts but that of what passed: ``2 failed, 1 unsupported``; empty where all passed."""
        names = (status for status in STATUSES if status != "passed" and self.counts[status])
        return ", ".join(f"{self.counts[status]} {status.replace('_', ' ')}" for status in names)

    @property
    def passed(self) -> str:
        """How many of them passed: ``12 of 14``."""
        return f"{self.counts['passed']} of {self.counts.total()}"

    @property
    def tone(self) -> str:
        """What colours it: ``bad`` where something decides against the target, else ``warning``, ``good`` or ``none``.

        What is unsupported is neither good nor bad.
        """
        if self.decided:
            return "bad"
        if any(self.counts[status] for status in ("failed", "error", "waived", "unexpectedly_passed", "not_run")):
            return "warning"
        return "good" if self.counts["passed"] else "none"


@dataclass(frozen=True, slots=True)
class Areas:
    """The whole matrix; ``rows`` has an area and one tally per device and dtype, None where none has a result."""

    cells: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Tally | None, ...]], ...]


def areas_by_cell(results: Sequence[Result]) -> Areas:
    """Return the matrix of ``results``, areas by the alphabet, devices and dtypes as in the run."""
    found = tallies(results)
    cells = tuple(dict.fromkeys(cell for _, cell in found))
    areas = sorted({area for area, _ in found})
    return Areas(cells, tuple((area, tuple(found.get((area, cell)) for cell in cells)) for area in areas))


def tallies(results: Iterable[Result]) -> dict[tuple[str, str], Tally]:
    """Return the counts of some results by area, and device and dtype."""
    grouped: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        grouped.setdefault((area_of(result.check), cell_of(result)), []).append(result)
    return {
        key: Tally(*key, Counter(result.status for result in found), any(result.decisive for result in found))
        for key, found in grouped.items()
    }


def programs_of(report: Report, result: Result) -> tuple[str, ...]:
    """Return each program once: as the result has it, else of the check where its contract is known.

    A check that was never begun, or took its process with it, has none of its own.
    """
    contract = frozen(report.contract)
    check = None if contract is None else contract.checks.get(result.check)
    known = check.programs if check is not None and check.requirement == result.requirement else ()
    return tuple(program for program in dict.fromkeys(result.programs or known) if _is_program(program))


def _is_program(text: str) -> bool:
    try:
        return bool(parse(text))
    except ProgramError:
        return False
