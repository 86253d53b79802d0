"""A report as one line per failure, for grep and editors, and as GitHub annotations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gradconform.results import Report, Result
from gradconform.text.escaping import for_github_data, for_github_property

from .by_cause import FailureGroup, cause, likely
from .code_places import CodePlace, code_place, shown_path
from .sentences import command_again, verdict
from .single_mistakes import causes_of

#: GitHub shows ten annotations of each level per step; one of them is the verdict.
_ANNOTATIONS = 9


def failure_lines(report: Report, folder: Path) -> list[str]:
    """Return ``path:check: message`` for each failure, and the verdict; paths inside ``folder`` are relative to it."""
    cells = len({(result.device, result.dtype) for result in report}) > 1
    path = _path(report, folder)
    lines = [
        f"{path}:{result.place.name if cells else result.check}: {_level(result)}{' '.join(_described(result).split())}"
        for result in report.failures
    ]
    return [*lines, verdict(report)]


def _path(report: Report, folder: Path) -> str:
    """Return the target's file, or its other name."""
    file = report.target.get("file")
    return shown_path(str(file), folder) if file else str(report.target["text"])


def _level(result: Result) -> str:
    return f"{result.status} {result.level}: " if result.status == "failed" else f"{result.kind} error: "


def _described(result: Result) -> str:
    """Return the first finding of a result and its likely cause."""
    why = likely(result)
    return f"{cause(result)}; likely cause: {why}" if why else cause(result)


def github_annotations(report: Report, folder: Path) -> Iterator[str]:
    """Yield one GitHub workflow command per cause, at its line of the target's code, and one with the verdict.

    The format is described at https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    decisive = [result for result in report.failures if result.decisive or report.strict]
    others = [result for result in report.failures if not (result.decisive or report.strict)]
    for level, results in (("error", decisive), ("warning", others)):
        for one in causes_of(results)[:_ANNOTATIONS]:
            yield _annotation(level, code_place(report, one.smallest, folder), _title(one), _message(report, one))
    level = "notice" if report.exit_code == 0 else "error"
    yield _annotation(level, None, "gradconform", verdict(report))


def _title(one: FailureGroup) -> str:
    more = len(one.checks) - 1
    return f"gradconform {one.smallest.check}{f' and {more} more' if more else ''}"


def _message(report: Report, one: FailureGroup) -> str:
    again = command_again(report, one.smallest)
    return "\n".join([one.text, one.smallest.message, *([f"reproduce: {again}"] if again else [])])


def _annotation(level: str, place: CodePlace | None, title: str, message: str) -> str:
    properties = [] if place is None else [f"file={for_github_property(place.file)}"]
    properties += [] if place is None or place.line is None else [f"line={place.line}"]
    properties.append(f"title={for_github_property(title)}")
    return f"::{level} {','.join(properties)}::{for_github_data(message)}"
