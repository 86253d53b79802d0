"""What a test says of the result that it stands for, whatever runs the tests."""

from __future__ import annotations

from gradconform.results import NonConformingError, Result
from gradconform.sinks import for_terminal
from gradconform.trial.program import without_programs

from .by_cause import cause, likely


class CheckFailedError(NonConformingError):
    """A check failed, or could not be judged; the message is the kit's."""

    __module__ = "gradconform"  # its public name, which tracebacks show


def waived_because(result: Result) -> str:
    """Return why a failure is expected."""
    return for_terminal("waived: {reason} ({issue}, {owner}, until {expires})".format(**result.waiver or {}))


def not_decisive(result: Result) -> str:
    """Return what is said of a failure that decides nothing: of a SHOULD."""
    seen = without_programs(result.message, result.programs)
    return for_terminal(f"{result.requirement} {seen[0] if seen else result.status}")


def told_in_full(result: Result, target: str) -> str:
    """Return what is wrong in one line, which runners of tests show in their summaries, then all of it.

    That is the level and where it was tried, the requirement, and what was seen.
    """
    status = f"error ({result.kind})" if result.status == "error" else result.status
    place = f"{result.level} {status}: {target} on {result.device} in {result.dtype}"
    wrong, seen = _in_a_line(result), result.message.splitlines()
    lines = [wrong, place, result.requirement, *(seen[1:] if seen[:1] == [wrong] else seen)]
    return for_terminal("\n".join(lines))


def _in_a_line(result: Result) -> str:
    """Return the likely cause of what a result saw first, where there is one, and what it saw."""
    why = likely(result)
    return f"{why}: {cause(result)}" if why else cause(result)
