"""The rows of a page's list: one per check, device and dtype, with all that opens below it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradconform.replay.command import can_be_replayed, replay_command
from gradconform.report.page.areas import area_of, place_of
from gradconform.report.page.programs import programs_of
from gradconform.report.page.timeline import Timeline, Timelines
from gradconform.results import Report, Result

#: Where a status stands in the list.
_SEVERITY = ("error", "failed", "unexpectedly_passed", "waived", "not_run", "unsupported", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What one run says of one check: the result, the command that runs it again, and its programs, drawn."""

    result: Result
    command: str | None
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
    place: str
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


def anchor(check: str, device: str, dtype: str) -> str:
    """Return the id of a row: the name as pytest shows it. An id of HTML has no white space."""
    return re.sub(r"\s+", "_", f"{check}[{device}-{dtype}]")


def rows_of(reports: Sequence[Report], timelines: Timelines) -> list[Row]:
    """Return the rows of one report, or of several side by side, what needs a look first."""
    each = [{(r.check, r.device, r.dtype): r for r in report.results} for report in reports]
    keys = dict.fromkeys(key for results in each for key in results)
    rows = [_row(key, reports, each, timelines) for key in keys]
    return sorted(rows, key=lambda row: row.severity)


def _row(
    key: tuple[str, str, str],
    reports: Sequence[Report],
    each: Sequence[Mapping[tuple[str, str, str], Result]],
    timelines: Timelines,
) -> Row:
    pairs = [(report, results.get(key)) for report, results in zip(reports, each, strict=True)]
    found = [result for _, result in pairs if result is not None]
    first = found[0]
    return Row(
        id=anchor(*key),
        check=first.check,
        area=area_of(first.check),
        place=place_of(first),
        level=first.level,
        requirement=first.requirement,
        severity=min(map(_severity, found)),
        told=tuple(None if result is None else _told(report, result, timelines) for report, result in pairs),
    )


def _told(report: Report, result: Result, timelines: Timelines) -> Told:
    actions: list[Any] = [finding["action"] for finding in result.findings]
    return Told(
        result=result,
        command=replay_command(report, result) if can_be_replayed(report) else None,
        timelines=tuple(timelines.of(programs_of(report, result), actions)),
    )


def _severity(result: Result) -> int:
    """Return the place of a result in the list; among what failed, MUST stands before SHOULD."""
    return 2 * _SEVERITY.index(result.status) + (result.level != "MUST")
