"""How a worker ended, in words, and what follows from it for the check that it was at."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gradconform.exit_words import exit_in_words
from gradconform.records import Place
from gradconform.results import Result

Kind = Literal["crash", "hang", "memory", "device_lost", "killed"]

#: How many lines of a worker's last words, and of each thread's stack, a message holds.
_WORDS, _FRAMES = 6, 8

#: Where a stack leaves the check for the code that runs it, and the thread that belongs to the kit.
_ENDS_AT, _OF_NOBODY = str(Path(__file__).parent), ("in _listen", "<no Python frame>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """The end of a worker in the middle of a check.

    ``text`` is what happened in one line, ``details`` are last words and stacks, and ``result`` is what the check gave
    where it gave something at all.
    """

    kind: Kind
    text: str
    details: tuple[str, ...] = ()
    result: Result | None = None

    @classmethod
    def of(cls, code: int | None, limit: float | None, *, complaints: str, stacks: str) -> Death:
        """Return the death of a process with exit code ``code``, or that took more than ``limit`` seconds."""
        kind, text = _cause(code, limit)
        details = (*complaints.strip().splitlines()[-_WORDS:], *_stack_lines(stacks))
        return cls(kind=kind, text=text, details=details)

    @classmethod
    def told(cls, record: Any) -> Death:
        """Return the death that a worker announced: of memory or the device."""
        memory = record["kind"] == "memory"
        what = "memory ran out" if memory else "the device was lost"
        result = Result.from_dict(record["result"])
        return cls(kind="memory" if memory else "device_lost", text=f"{what}: {record['text']}", result=result)


def _cause(code: int | None, limit: float | None) -> tuple[Kind, str]:
    if limit is not None:
        return "hang", f"the check had no end within {limit:g} s"
    if code is None or code >= 0:
        return "crash", f"the process ended in the middle of the check, {exit_in_words(code)}"
    if -code == signal.SIGKILL:
        return "killed", f"the process was ended by {exit_in_words(code)}, as the system does where memory runs out"
    return "crash", f"the process was ended by {exit_in_words(code)}"


def _stack_lines(stacks: str) -> list[str]:
    """Return what faulthandler wrote, without threads that run no check and the frames that only run it."""
    found: list[str] = []
    for block in stacks.split("\n\n"):
        lines = [line.rstrip() for line in block.splitlines() if not line.startswith("Extension modules")]
        if not any(word in line for line in lines for word in _OF_NOBODY):
            inside = [line for line in lines if _ENDS_AT not in line]
            found += inside[: _FRAMES + 1]
    return [line for line in found if line]


def judged(begun: Result, first: Death, again: Death | Result, oracle: Death | Result | None) -> Result:
    """Return the result of a check that ended its worker.

    ``begun`` says which check, ``again`` is what came of it in a new worker and by itself, ``oracle`` what came of it
    there with plain autograd in the target's place, None where that was not asked. The target is accused only of what
    happens again, and does not happen to plain autograd.
    """
    if isinstance(again, Result):
        if again.status not in {"passed", "unexpectedly_passed"}:
            return again
        return _result(
            begun, "error", "environment", f"{first.text}; run once more, by itself, the check passed", first
        )
    if not isinstance(oracle, Result) or oracle.status not in {"passed", "failed"}:
        return _result(begun, "error", "environment", f"{again.text}, with plain autograd as well", again)
    if again.result is not None and again.result.status == "failed":
        return again.result
    kind = "memory" if again.kind == "killed" else again.kind
    return _result(begun, "failed", kind, f"{again.text}; plain autograd does not do that", again)


def _result(begun: Result, status: Any, kind: str, text: str, death: Death) -> Result:
    return Result(
        **Place.of(begun)._asdict(),
        level=begun.level,
        requirement=begun.requirement,
        status=status,
        kind=kind,
        message="\n".join([text, *death.details]),
    )
