"""Results on a page: a row per check, device and dtype, grouped by topic, and counts per area."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from gradconform.contract.frozen import frozen
from gradconform.report.sentences import command_again, command_of_script
from gradconform.results import STATUSES, Place, Report, Result
from gradconform.text.findings import finding_line, frame_lines
from gradconform.trial.program import ProgramError, parse, without_programs


@dataclass(frozen=True, slots=True)
class Program:
    """One program as text in three parts; the middle one is the first wrong action, if any."""

    before: str
    wrong: str = ""
    after: str = ""

    @property
    def text(self) -> str:
        """Return the whole program."""
        return " ".join(filter(None, (self.before, self.wrong, self.after)))


def marked_programs(programs: Iterable[str], actions: Sequence[str]) -> tuple[Program, ...]:
    """Return each program with its first wrong action; ``actions`` are those of the findings, in order.

    A report does not name the program of a finding, so every program that has the action is marked.
    """
    return tuple(_program(program.split(), actions) for program in programs)


def _program(tokens: list[str], actions: Sequence[str]) -> Program:
    position = min((tokens.index(action) for action in actions if action in tokens), default=None)
    if position is None:
        return Program(" ".join(tokens))
    return Program(" ".join(tokens[:position]), tokens[position], " ".join(tokens[position + 1 :]))


#: The order of statuses in the list.
_SEVERITY = ("error", "failed", "unexpectedly_passed", "waived", "not_run", "unsupported", "passed")

#: Statuses that have no details except the reason why the check was not judged.
_QUIET = frozenset({"passed", "unsupported", "not_run"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedResult:
    """One run's record of one check: the result, the commands that reproduce it, and its programs."""

    result: Result
    command: str | None
    script: str | None
    programs: tuple[Program, ...]

    @property
    def message(self) -> str:
        """Return the message without programs and numbers, each cause once, and the target's frames of an exception."""
        return "\n".join([*self._lines, *frame_lines(self.result.findings)])

    @property
    def _lines(self) -> list[str]:
        """Return the message's lines without programs and numbers, which are shown separately, and each cause once."""
        findings = self._in_words
        reasons = {_reason(finding) for finding in self.result.findings}
        if self._shared is None and not self.numbers:
            return list(without_programs(self.result.message, self.result.programs))
        lines = without_programs("\n".join(self.result.preamble), self.result.programs)
        if self._shared is None:
            return [*lines, *map(finding_line, findings)]
        return [*lines, *map(_without_reason, findings), f"all{reasons.pop()[1:]}"]

    @property
    def _shared(self) -> str | None:
        """Return the reason that several findings share, or None."""
        reasons = {_reason(finding) for finding in self.result.findings}
        several = len(self.result.findings) >= _SEVERAL and len(reasons) == 1 and reasons != {""}
        return reasons.pop() if several else None

    @property
    def _in_words(self) -> list[Mapping[str, Any]]:
        """Return the findings that are not lines of numbers."""
        numbers = len(self._in_numbers) >= _SEVERAL
        return [one for one in self.result.findings if not (numbers and _NUMBERS.fullmatch(str(one["text"])))]

    @property
    def _in_numbers(self) -> list[Mapping[str, Any]]:
        return [one for one in self.result.findings if _NUMBERS.fullmatch(str(one["text"]))]

    @property
    def numbers(self) -> str:
        """Return a line per wrong tensor, if several have numbers, each value in its column; a repeated cause is ″.

        Of the tensors after the first :data:`_IN_COLUMNS`, it has names and actions alone, with the range of their
        error/bound, and of those after the first :data:`_IN_SHORT` only how many they are. An action and the module of
        a name are left out where they are those of the tensor before.
        """
        found, more = self._in_numbers[:_IN_COLUMNS], self._in_numbers[_IN_COLUMNS:]
        if len(found) < _SEVERAL:
            return ""
        reasons = ["" if self._shared is not None else _reason(one).removeprefix("; ") for one in found]
        shown = ["″" if reason and reason == before else reason for before, reason in pairwise(["", *reasons])]
        return "\n".join([*map(_columns, found, shown), *([_in_one_line(more)] if more else [])])

    @property
    def seen(self) -> str:
        """Return the first finding without its cause; empty if there is only a message or an exception."""
        return "".join(_without_reason(one) for one in self.result.findings[:1] if one["kind"] != "error")

    @property
    def unsure(self) -> bool:
        """Whether several programs are marked and the report does not say which one was wrong."""
        return sum(bool(program.wrong) for program in self.programs) > 1

    @property
    def action_outside(self) -> str | None:
        """Return the first wrong action if no program has it: a program's end, or an incomplete program."""
        first = next((str(finding["action"]) for finding in self.result.findings if finding["action"]), None)
        return None if any(program.wrong for program in self.programs) else first


#: The least number of findings with one common reason for which it is printed only once.
_SEVERAL = 2


#: A finding on a wrong value: the place of the worst element, then what was expected, what was there, and the errors.
_NUMBERS = re.compile(
    r"worst at (?P<at>\[[\d, ]*\]): expected (?P<expected>[^;]+), got (?P<got>[^;]+); "
    r"error (?P<error>[^;, ]+), bound (?P<bound>[^;, ]+), error/bound (?P<ratio>[^;, ]+)"
)


#: The most wrong tensors of one result that are shown with all their numbers.
_IN_COLUMNS = 5

#: The most wrong tensors after those that are named; a JSON report has all.
_IN_SHORT = 20


def _in_one_line(findings: Sequence[Mapping[str, Any]]) -> str:
    """Return how many wrong tensors these are, the range of their error/bound, and the names of the first ones."""
    ratios = sorted((str(one["text"]).rpartition(" ")[2] for one in findings), key=float)
    of = ratios[0] if ratios[0] == ratios[-1] else f"{ratios[0]} to {ratios[-1]}"
    names = [*map(_in_short, findings[:_IN_SHORT], [None, *findings])]
    rest = [f"and {len(findings) - len(names)} more"] if len(findings) > len(names) else []
    return f"and {len(findings)} more, error/bound {of}: {', '.join([*names, *rest])}"


def _in_short(finding: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    """Return the name and action of a finding, as far as they differ from those of the one before."""
    name, action = str(finding["where"]), str(finding["action"])
    if before is None or before["action"] != action:
        return f"{name} {action}"
    module, dot, _ = name.rpartition(".")
    return name[len(module) :] if dot and module == before["where"].rpartition(".")[0] else name


def _columns(finding: Mapping[str, Any], reason: str) -> str:
    found = _NUMBERS.fullmatch(str(finding["text"]))
    values = [] if found is None else [found["at"].replace(" ", ""), *_in_digits(found), found["ratio"]]
    return "\t".join([str(finding["where"]), str(finding["action"]), *values, *([reason] if reason else [])])


def _in_digits(found: re.Match[str]) -> list[str]:
    """Return the expected and the actual number in four digits, or in all if these are equal."""
    numbers = [found["expected"], found["got"]]
    try:
        short = [f"{float(number):.4g}" for number in numbers]
    except ValueError:  # a complex number, or words
        return numbers
    return numbers if short[0] == short[1] else short


def _without_reason(finding: Mapping[str, Any]) -> str:
    return finding_line({**finding, "cause": None, "needs": None})


def _reason(finding: Mapping[str, Any]) -> str:
    return finding_line(finding).removeprefix(_without_reason(finding))


def reported_result(report: Report, result: Result) -> ReportedResult:
    """Return a run's record of one of its results."""
    actions: list[Any] = [finding["action"] for finding in result.findings]
    return ReportedResult(
        result=result,
        command=command_again(report, result),
        script=command_of_script(report, result),
        programs=marked_programs(programs_of(report, result), actions),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check on one device and dtype; ``reported`` has one entry per run, None for a run without a result."""

    place: Place
    level: str
    requirement: str
    severity: int
    reported: tuple[ReportedResult | None, ...]

    @property
    def id(self) -> str:
        """The id of the row on the page."""
        return anchor(self.place)

    @property
    def cell(self) -> str:
        """Return device and dtype as text."""
        return f"{self.place.device} {self.place.dtype}"

    @property
    def results(self) -> list[Result]:
        """Return the results of all runs that have one."""
        return [reported.result for reported in self.reported if reported is not None]

    @property
    def statuses(self) -> list[str]:
        """Return the statuses in the runs, each once; ``absent`` means no result."""
        return list(
            dict.fromkeys("absent" if reported is None else reported.result.status for reported in self.reported)
        )

    @property
    def differs(self) -> bool:
        """Whether the runs differ in status or in the kind of failure."""
        kinds = {
            None if reported is None else (reported.result.status, reported.result.kind) for reported in self.reported
        }
        return len(kinds) > 1

    @property
    def programs(self) -> tuple[str, ...]:
        """Return the programs of the first run that has any."""
        return next(
            (tuple(p.text for p in reported.programs) for reported in self.reported if reported and reported.programs),
            (),
        )

    @property
    def quiet(self) -> bool:
        """Whether every run has only a status and the reason why the check was not judged."""
        return _QUIET.issuperset(result.status for result in self.results)


def anchor(place: Place) -> str:
    """Return the id of a row: the name as pytest shows it, without white space, which an HTML id may not have."""
    return re.sub(r"\s+", "_", place.name)


def rows_of(reports: Sequence[Report]) -> list[Row]:
    """Return the rows of one report, or of several side by side; those that need attention come first."""
    each = [{r.place: r for r in report.results} for report in reports]
    keys = dict.fromkeys(key for results in each for key in results)
    rows = [_row(key, reports, each) for key in keys]
    return sorted(rows, key=lambda row: row.severity)


def _row(place: Place, reports: Sequence[Report], each: Sequence[Mapping[Place, Result]]) -> Row:
    pairs = [(report, results.get(place)) for report, results in zip(reports, each, strict=True)]
    found = [result for _, result in pairs if result is not None]
    return Row(
        place=place,
        level=found[0].level,
        requirement=found[0].requirement,
        severity=min(map(_severity, found)),
        reported=tuple(None if result is None else reported_result(report, result) for report, result in pairs),
    )


def _severity(result: Result) -> int:
    """Return the rank of a result in the list; among failures, MUST comes before SHOULD."""
    return 2 * _SEVERITY.index(result.status) + (result.level != "MUST")


def area_of(check: str) -> str:
    """Return the first part of a check's id."""
    return check.partition(".")[0]


def cell_of(result: Result) -> str:
    """Return device and dtype as text."""
    return f"{result.device} {result.dtype}"


@dataclass(frozen=True, slots=True)
class Tally:
    """The results of one area on one device in one dtype."""

    area: str
    cell: str
    counts: Counter[str] = field(default_factory=Counter)
    decided: bool = False

    @property
    def reported(self) -> str:
        """Return all counts except passed: ``2 failed, 1 unsupported``; empty if all passed."""
        names = (status for status in STATUSES if status != "passed" and self.counts[status])
        return ", ".join(f"{self.counts[status]} {status.replace('_', ' ')}" for status in names)

    @property
    def passed(self) -> str:
        """Return how many of them passed: ``12 of 14``."""
        return f"{self.counts['passed']} of {self.counts.total()}"

    @property
    def wrong(self) -> float:
        """Return the share that failed or could not be judged."""
        return (self.counts["failed"] + self.counts["error"]) / max(1, self.counts.total())

    @property
    def tone(self) -> str:
        """Return the tone: ``bad`` if a result decides against the target, else ``warning``, ``good`` or ``none``.

        Unsupported checks are neither good nor bad.
        """
        if self.decided:
            return "bad"
        if any(self.counts[status] for status in ("failed", "error", "waived", "unexpectedly_passed", "not_run")):
            return "warning"
        return "good" if self.counts["passed"] else "none"


@dataclass(frozen=True, slots=True)
class Areas:
    """The whole matrix; ``rows`` has an area and one tally per device and dtype, None if it has no result."""

    cells: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Tally | None, ...]], ...]


def areas_by_cell(results: Sequence[Result]) -> Areas:
    """Return the matrix of ``results``: areas with the largest failing share first, devices and dtypes in run order."""
    found = tallies(results)
    cells = tuple(dict.fromkeys(cell for _, cell in found))
    rows = {area: tuple(found.get((area, cell)) for cell in cells) for area in sorted({area for area, _ in found})}
    worst = sorted(rows, key=lambda area: -max(tally.wrong for tally in rows[area] if tally))
    return Areas(cells, tuple((area, rows[area]) for area in worst))


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
    """Return each program once: from the result, else from the check if its contract is known.

    A check that never started, or whose process ended with it, has no programs of its own.
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
