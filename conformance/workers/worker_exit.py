"""How a check's worker ended, and who is responsible."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from typing import Any

from gradconform.process.stacks import stack_lines
from gradconform.process.worker import Exit
from gradconform.results import EndKind, Result, Status

#: The most lines of a worker's last output in a message.
_WORDS = 6
#: A target that takes up to this many times as long as plain autograd may be slow; beyond it, the target hangs.
_SLOWER = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The end of a worker, and its consequence for the check that it was running.

    ``text`` is the event in one line, and ``details`` are the last output and the stacks. ``result`` is the check's
    result if it had one. ``limit`` is the check's time limit in seconds, if it was exceeded.
    """

    kind: EndKind
    text: str
    details: tuple[str, ...] = ()
    result: Result | None = None
    limit: float | None = None

    @classmethod
    def of(cls, exit_: Exit, *, at_check: bool = True) -> Ending:
        """Return the meaning of a process's end for its check, or for the run if it was running none."""
        kind, text = _cause(exit_, at_check=at_check)
        words = exit_.complaints.strip().splitlines()[-_WORDS:]
        return cls(kind=kind, text=text, details=(*words, *stack_lines(exit_.stacks)), limit=exit_.limit)

    @classmethod
    def from_message(cls, message: Any) -> Ending:
        """Return the end that a worker announced: out of memory, or a broken device."""
        memory = message["gone"] == "memory"
        what = "memory ran out" if memory else "the device was lost"
        result = Result.from_dict(message["result"])
        return cls(kind="memory" if memory else "device_lost", text=f"{what}: {message['text']}", result=result)


def _cause(exit_: Exit, *, at_check: bool) -> tuple[EndKind, str]:
    if exit_.limit is not None and not at_check:
        return "hang", (
            f"a worker began no check within {exit_.limit:g} s: it was importing the target or preparing the device or "
            "the plan, or it was stopped; --start-timeout allows more"
        )
    if exit_.limit is not None:
        return "hang", f"the check did not end within {exit_.limit:g} s"
    if exit_.foreign:
        return "crash", f"the kit stopped the process during the check, because it read {exit_.words}"
    if exit_.code is None or exit_.code >= 0:
        return "crash", f"the process ended during the check, with {exit_.words}"
    if -exit_.code == signal.SIGKILL:
        return "killed", f"the process was killed by {exit_.words}, as the system does if memory runs out"
    return "crash", f"the process was killed by {exit_.words}"


def charged(begun: Result, first: Ending, again: Ending | Result, oracle: Ending | Result | None) -> Result:
    """Return the result of a check that ended its worker.

    ``begun`` names the check, and ``again`` is its outcome alone in a new worker. ``oracle`` is its outcome there with
    plain autograd in place of the target, None if that was not tried. The target is charged only if the failure repeats
    and plain autograd does not share it. It is not charged with a hang if plain autograd is slow too.
    """
    if isinstance(again, Result):
        if again.status not in {"passed", "unexpectedly_passed"}:
            return again
        return _result(begun, "error", "environment", f"{first.text}; run again alone, the check passed", first)
    if not isinstance(oracle, Result) or oracle.status not in {"passed", "failed"}:
        return _result(begun, "error", "environment", f"{again.text}; the same happens with plain autograd", again)
    if again.limit is not None and oracle.duration_s * _SLOWER > again.limit:
        text = f"{again.text}; plain autograd took {oracle.duration_s:.1f} s; --check-timeout allows more"
        return _result(begun, "error", "environment", text, again)
    if again.result is not None and again.result.status == "failed":
        return again.result
    kind = "memory" if again.kind == "killed" else again.kind
    text = again.text
    if again.limit is not None and first.limit is not None and again.limit < first.limit:
        text = f"{first.text}, and alone not within {again.limit:g} s"
    return _result(begun, "failed", kind, f"{text}; this does not happen with plain autograd", again)


def _result(begun: Result, status: Status, kind: str, text: str, ending: Ending) -> Result:
    return replace(begun, status=status, kind=kind, message="\n".join([text, *ending.details]))
