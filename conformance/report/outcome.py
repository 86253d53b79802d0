"""What a test says of the result that it stands for, whatever runs the tests."""

from __future__ import annotations

from gradconform.results import NonConformingError, Result
from gradconform.sinks import for_terminal
from gradconform.trial.program import without_programs


class CheckFailedError(NonConformingError):
    """A check failed, or could not be judged; the message is the kit's."""


def waived_because(result: Result) -> str:
    """Return why a failure is expected."""
    return for_terminal("waived: {reason} ({issue}, {owner}, until {expires})".format(**result.waiver or {}))


def not_decisive(result: Result) -> str:
    """Return what is said of a failure that decides nothing: of a SHOULD."""
    seen = without_programs(result.message, result.programs)
    return for_terminal(f"{result.requirement} {seen[0] if seen else result.status}")


def told_in_full(result: Result, target: str) -> str:
    """Return the requirement, the level, where it was tried, and what was seen."""
    status = f"error ({result.kind})" if result.status == "error" else result.status
    place = f"{result.level} {status}: {target} on {result.device} in {result.dtype}"
    return for_terminal(f"{result.requirement}\n{place}\n{result.message}")
