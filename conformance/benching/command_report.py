"""The result of one command on one target, read from its report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gradconform.exits import EXIT_ENVIRONMENT
from gradconform.reading.report import values_of

#: The kinds of cause that refer to what another check reports.
_ELSEWHERE = frozenset({"of_wrong_output", "of_wrong_gradient"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandReport:
    """The result of a command: its failed checks, and the causes with their numbers of checks, the commonest first.

    ``errors`` are the checks that could not be judged, or the command's output if it wrote no report. ``seconds`` is
    its duration, ``processor`` the processor time of all its processes.
    """

    command: tuple[str, ...]
    exit_code: int
    seconds: float
    processor: float = 0.0
    judged: int = 0
    failed: tuple[str, ...] = ()
    causes: tuple[tuple[str, int], ...] = ()
    errors: tuple[str, ...] = ()

    @property
    def silent(self) -> bool:
        """Whether checks were judged and none failed."""
        return self.judged > 0 and not self.failed and not self.errors

    @property
    def unavailable(self) -> bool:
        """Whether the environment lacks a requirement of the target, such as its library, so nothing was judged."""
        return self.exit_code == EXIT_ENVIRONMENT and not self.judged


def report_of_command(
    command: Sequence[str], exit_code: int, seconds: float, report: Path, output: str
) -> CommandReport:
    """Return the result of a command from its report, or from what it ``output`` without one."""
    reported = CommandReport(command=tuple(command), exit_code=exit_code, seconds=seconds)
    try:
        results = values_of(report.read_text(encoding="utf-8"))["results"]
    except (OSError, ValueError, KeyError):
        last = " ".join(output.split())[-300:]
        return replace(reported, errors=(last if exit_code == EXIT_ENVIRONMENT else f"no report: {last}",))
    failed = [result for result in results if result["status"] == "failed"]
    counted = Counter(kind for result in failed for kind in _kinds(result))
    return replace(
        reported,
        judged=sum(result["status"] in {"passed", "failed"} for result in results),
        failed=tuple(result["check"] for result in failed),
        causes=tuple(counted.most_common()),
        errors=tuple(f"{r['check']}: {r['message'][:300]}" for r in results if r["status"] == "error"),
    )


def _kinds(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kinds of cause of the first finding with a cause; if none has one, the kind of finding.

    A cause that only refers to another check is none: that check has it.
    """
    causes = [finding["cause"] for finding in result["findings"] if finding["cause"] is not None]
    own = [cause for cause in causes if cause["kind"] not in _ELSEWHERE]
    if own:
        yield from dict.fromkeys(_every(own[0]))
    elif not causes:
        yield result["kind"]


def _every(cause: Mapping[str, Any]) -> Iterator[str]:
    """Yield the kind of a cause, or those of its parts."""
    inner = cause.get("causes", ())
    if cause["kind"] not in {"either", "several"} or not inner:
        yield cause["kind"]
    for one in inner:
        yield from _every(one)
