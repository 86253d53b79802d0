"""The text that a test shows for its check's result, whatever runs the tests."""

from __future__ import annotations

from gradconform.results import NonConformingError, Result
from gradconform.text.escaping import for_terminal
from gradconform.text.findings import frame_lines
from gradconform.trial.program import without_programs

from .by_cause import cause, likely


class CheckFailedError(NonConformingError):
    """A check failed or could not be judged; the kit writes the message."""

    __module__ = "gradconform"  # public name, which tracebacks show


def waived_because(result: Result) -> str:
    """Return why the failure is expected."""
    return for_terminal("waived: {reason} ({issue}, {owner}, until {expires})".format(**result.waiver or {}))


def not_decisive(result: Result) -> str:
    """Return the text for a failed SHOULD, which does not decide the verdict."""
    seen = without_programs(result.message, result.programs)
    return for_terminal(f"{result.requirement} {seen[0] if seen else result.status}")


def full_text(result: Result, target: str) -> str:
    """Return the defect in one line, which test runners show in their summaries, then the details.

    The details are the level, device and dtype, the requirement and the findings.
    """
    status = f"error ({result.kind})" if result.status == "error" else result.status
    place = f"{result.level} {status}: {target} on {result.device} in {result.dtype}"
    wrong, seen = _in_a_line(result), result.message.splitlines()
    seen = [*(seen[1:] if seen[:1] == [wrong] else seen), *frame_lines(result.findings)]
    lines = [wrong, place, result.requirement, *seen]
    return for_terminal("\n".join(lines))


def _in_a_line(result: Result) -> str:
    """Return the likely cause of a result's first finding, if known, and the finding."""
    why = likely(result)
    return f"{why}: {cause(result)}" if why else cause(result)
