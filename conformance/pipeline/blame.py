"""What became of a case in which ranks ended: which rank, in which action, and whether the implementation did it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from gradconform.exit_words import exit_in_words
from gradconform.pipeline.marks import Mark, read_mark
from gradconform.pipeline.question import Case, Question
from gradconform.pipeline.records import Record, blank_result, read_records
from gradconform.results import Result

_LINES = 30
#: How the second line of a message begins where a rank raised.
_RAISED = re.compile(r"rank \d+ raised ")


@dataclass(frozen=True, slots=True)
class Ended:
    """The folder of a run whose ranks are gone."""

    folder: Path
    ranks: int

    def marks(self) -> dict[int, Mark]:
        """Return the last mark of each rank of this machine that got so far."""
        found = {rank: read_mark(self.folder / f"rank-{rank}.mark") for rank in range(self.ranks)}
        return {rank: mark for rank, mark in found.items() if mark is not None}

    def records(self, case: str) -> list[Record]:
        """Return what was written of a case."""
        files = (self.folder / f"rank-{rank}.ndjson" for rank in range(self.ranks))
        return [record for file in files for record in read_records(file) if record.case == case]

    def stack(self, rank: int) -> str:
        """Return the stacks of a rank that took too long, an empty text where it did not."""
        file = self.folder / f"rank-{rank}.stack"
        return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""

    def exit_codes(self) -> dict[int, int]:
        """Return how ranks ended that torch's launcher found to have failed; it ends the others itself."""
        file = self.folder / "failures.json"
        codes = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        return {int(rank): code for rank, code in codes.items()}

    def told(self, rank: int) -> str:
        """Return the last lines that a rank, or else the launcher, wrote to its standard error."""
        files = sorted((self.folder / "logs").glob(f"*/attempt_0/{rank}/stderr.log")) or [self.folder / "agent.log"]
        return "\n".join(files[-1].read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES:])


def verdict_on(case: Case, ended: Ended, question: Question) -> Result:
    """Return the result of the case in which the ranks ended.

    What the implementation raised, or was doing when its rank died or hung, is a failure of the target; what happened
    outside it is an error of the environment.
    """
    marks = ended.marks()
    rank, what, detail, kind = _what_happened(case, ended, question, marks)
    mark = marks.get(rank, Mark(case.id, "its start"))
    blamed = mark.inside or kind == "raised"
    # Where it was raised outside the implementation, only a run with another one tells whose fault it is.
    where = f"rank {rank} {what} at {mark.action or 'the start of the case'}"
    inside = ", in the implementation under test" if mark.inside else ""
    others = "; ".join(f"rank {other} was at {m.action or 'the start'}" for other, m in marks.items() if other != rank)
    message = "\n".join(filter(None, [f"schedule {case.size}", f"{where}{inside}", others, detail]))
    return blank_result(
        case,
        device=question.device,
        dtype=question.dtype,
        status="failed" if blamed else "error",
        kind="error" if blamed else "environment",
        message=message,
    )


def charged(result: Result, of_reference: Result | None) -> Result:
    """Return what is charged to the target of a result, given that of a correct split backward in its place.

    Where torch's runtime raises with both, it cannot do the case, and nothing is said of the target. Where both are
    wrong in another way, that is an error of the environment.
    """
    if of_reference is None or of_reference.status not in {"failed", "error"}:
        return result
    lines = result.message.splitlines()
    told = " ".join(lines[1:2])  # the first line names the schedule
    if all(_RAISED.match(one.message.partition("\n")[2]) for one in (result, of_reference)):
        message = f"torch's runtime raises with a correct split backward as well: {told}"
        return replace(result, status="unsupported", kind=None, message=message, findings=())
    message = "\n".join(["a correct split backward fails here as well, so the target is not charged", *lines])
    return replace(result, status="error", kind="environment", message=message)


def _what_happened(case: Case, ended: Ended, question: Question, marks: dict[int, Mark]) -> tuple[int, str, str, str]:
    """Return the rank that ended first, what it did, the details, and ``raised``, ``hung`` or ``died``."""
    raised = {record.rank: record for record in ended.records(case.id) if record.raised}
    hung = {rank: ended.stack(rank) for rank in range(ended.ranks) if ended.stack(rank)}
    # The launcher ends the others by SIGTERM, and one that raised ends itself with 1.
    died = {rank: code for rank, code in ended.exit_codes().items() if code not in {1, -signal.SIGTERM}}
    inside = {rank for rank, mark in marks.items() if mark.inside}
    # What a rank raises outside the implementation may be only that another one is gone, so it comes behind.
    earliest = sorted(raised, key=lambda rank: raised[rank].at)
    for rank in [*(r for r in earliest if r in inside), *_inside_first(hung, inside), *_inside_first(died, inside)]:
        if rank in raised:
            return _raised(raised[rank])
        if rank in hung:
            return rank, f"took longer than {question.timeout:g} s", hung[rank].strip(), "hung"
        return rank, f"died ({exit_in_words(died[rank])})", ended.told(rank), "died"
    for rank in sorted(inside - set(raised)):
        return rank, "ended without a word", ended.told(rank), "died"
    if earliest:
        return _raised(raised[earliest[0]])
    return 0, "ended", ended.told(0), "died"


def _raised(record: Record) -> tuple[int, str, str, str]:
    text = (record.raised or "").strip()
    return record.rank, f"raised {text.splitlines()[-1]}", text, "raised"


def _inside_first(ranks: Iterable[int], inside: set[int]) -> list[int]:
    return sorted(ranks, key=lambda rank: (rank not in inside, rank))
