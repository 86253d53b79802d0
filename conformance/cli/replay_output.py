"""The output of ``gradconform replay`` on the one check that it has run again."""

from __future__ import annotations

from collections.abc import Sequence

from gradconform.exits import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_INCOMPLETE
from gradconform.report.lines import command_lines, wrapped, wrapped_each
from gradconform.results import Report, Result
from gradconform.text.findings import frame_lines
from gradconform.version import KIT_VERSION

from .console import width, write


def show_replayed_check(check: str, now: Report, then: Report | None, reported: Sequence[str]) -> None:
    """Print the check, the target and the options in ``reported``, and the differences from the run ``then``.

    The differences explain why numbers may differ.
    """
    text = f"gradconform {KIT_VERSION} replays {check} on {now.target['name']} {now.target['version'] or ''}".rstrip()
    write([*wrapped(f"{text}: {', '.join(reported)}", width(), role="heading")])
    write([line for one in _differences(now, then) for line in wrapped(one, width(), role="warning")])


def _differences(now: Report, then: Report | None) -> list[str]:
    if then is None:
        return []
    found = []
    if then.target.get("sha256") != now.target["sha256"]:
        found.append("the target's file differs from the one in the report")
    for name in ("torch", "platform"):
        before, here = then.environment.get(name), now.environment.get(name)
        if before != here:
            found.append(f"{name} was {before} in the report and is {here} now")
    return found


def show_replay_result(result: Result, before: Result | None, *, script: str | None = None) -> int:
    """Print all details of a result, and whether it equals ``before``; return the exit code.

    ``script`` is the command that writes a failure as a script, if there is one.
    """
    # For a failure without a wrong value, the largest error has no meaning.
    informative = result.error_ratio is not None and (result.status == "passed" or result.error_ratio > 1)
    numbers = f"; the largest error/bound is {result.error_ratio:.3g}" if informative else ""
    write(
        [
            *wrapped(result.requirement, width()),
            *wrapped_each(result.message.splitlines(), width(), indent=2, hanging=2),
            *wrapped_each(frame_lines(result.findings), width(), indent=4, hanging=2),
            *wrapped(_compared(result, before), width()),
            *wrapped(
                f"{result.check}: {result.status}{numbers}",
                width(),
                hanging=4,
                role="good" if result.status == "passed" else "bad",
            ),
            *(command_lines("write a script", script, width()) if script and result.status == "failed" else []),
        ]
    )
    return {"passed": EXIT_CONFORMS, "failed": EXIT_DOES_NOT}.get(result.status, EXIT_INCOMPLETE)


def show_written_script(path: str, check: str, needs: str, command: str) -> None:
    """Print what a script runs and needs, and then the command that runs it."""
    reported = wrapped(f"wrote {path}: it runs {check} with {needs}", width(), hanging=4)
    write([*reported, *command_lines("run", command, width())])


def _compared(result: Result, before: Result | None) -> str:
    if before is None:
        return ""
    same = (result.status, result.message, result.error_ratio) == (before.status, before.message, before.error_ratio)
    return "same result as in the report, to the last digit" if same else f"in the report: {before.status}"
