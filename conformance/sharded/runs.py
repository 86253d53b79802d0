"""Runs the rows of a sharded stage in ranks that torch's launcher starts, and gives the results of their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace

from gradconform.diagnosis.cause import listed
from gradconform.exits import EXIT_USAGE, RunStoppedError
from gradconform.pipeline.exchange import Mark, Outcome
from gradconform.pipeline.ranks import Launcher, Machines
from gradconform.pipeline.verdicts import Ended, First, first_to_end
from gradconform.process.orphans import Orphans
from gradconform.results import Result

from .cases import Row, RowCheck, ShardedJob

#: The most rows in a row that may end the ranks: each costs a start.
_IN_A_ROW = 3

OnResult = Callable[[Result], None]


def run_rows(
    job: ShardedJob,
    checks: Mapping[str, Sequence[RowCheck]],
    machines: Machines,
    on_result: OnResult,
    on_start: OnResult,
) -> str | None:
    """Run every row, and pass the results of its checks to ``on_result``; return why the run stopped early, or None.

    Raises :class:`~gradconform.exits.RunStoppedError` with the exit code of wrong input if the description of the stage
    is wrong.
    """
    left, ended = job.cases, 0
    with closing(Orphans()), closing(Launcher(machines)) as launcher:
        while left:
            before = len(left)
            for row, results in _one_start(replace(job, cases=left), checks, launcher, on_start):
                left = tuple(one for one in left if one.id != row.id)
                for result in results:
                    on_result(result)
            if not left:
                break
            ended = ended + 1 if before - len(left) == 1 else 1
            if launcher.never_met:
                return f"ranks hang before their first row, at {launcher.never_met}"
            if machines.machines > 1:
                return "a rank ended; runs on several machines are not started afresh"
            if ended >= _IN_A_ROW:
                return f"the ranks ended early in {ended} rows in a row; correct the first one and run again"
        launcher.finish()
    return None


def _one_start(
    job: ShardedJob, checks: Mapping[str, Sequence[RowCheck]], launcher: Launcher, on_start: OnResult
) -> Iterator[tuple[Row, list[Result]]]:
    """Start the ranks once; yield each row with its results; the last may be the row in which they ended."""
    ranks = launcher.start(job)
    for row in job.cases:
        own = checks[row.id]
        on_start(own[0].result(job.device, job.dtype, status="not_run"))
        outcomes = ranks.follow(row)
        refused = next((one.refused for one in outcomes if one.refused), None)
        if refused is not None:
            raise RunStoppedError(refused, EXIT_USAGE)
        if ranks.hung or any(one.raised for one in outcomes) or len(outcomes) < launcher.machines.ranks:
            ended = ranks.ended(row)
            refused = next((one.refused for one in ended.outcomes if one.refused), None)
            if refused is not None:
                raise RunStoppedError(refused, EXIT_USAGE)
            yield row, list(_ended(row, own, ended, job))
            return
        unsupported = next((one.unsupported for one in outcomes if one.unsupported), None)
        yield row, [_result(check, ranks.outcomes(check.id), job, unsupported) for check in own]
    ranks.wait()


def _result(check: RowCheck, outcomes: Sequence[Outcome], job: ShardedJob, unsupported: str | None) -> Result:
    if unsupported is not None:
        return check.result(job.device, job.dtype, status="unsupported", message=unsupported)
    (found,) = outcomes[:1]
    return check.result(
        job.device,
        job.dtype,
        found.findings,
        error_ratio=found.error_ratio,
        bit_equal=found.bit_equal if found.error_ratio is not None else None,
        duration_s=found.duration_s,
    )


def _ended(row: Row, checks: Sequence[RowCheck], ended: Ended, job: ShardedJob) -> Iterator[Result]:
    """Yield the results of a row in which ranks ended: the first check has the message, the others name it."""
    first, *others = checks
    outcome = first_to_end(ended, job.timeout)
    mark = ended.marks.get(outcome.rank, Mark(action="its start"))
    charged = mark.inside or outcome.how == "raised" or bool(_inside(ended))
    message = "\n".join(filter(None, [row.tried, *_sentences(outcome, ended, job), _detail(outcome)]))
    yield first.result(
        job.device,
        job.dtype,
        status="failed" if charged else "error",
        kind="error" if charged else "environment",
        message=message,
    )
    for check in others:
        yield check.result(
            job.device,
            job.dtype,
            status="not_run",
            message=f"the ranks ended before it could be judged; see {first.id}",
        )


def _inside(ended: Ended) -> list[int]:
    return [rank for rank, mark in ended.marks.items() if mark.inside]


def _sentences(first: First, ended: Ended, job: ShardedJob) -> Iterator[str]:
    """Yield what happened, and where each rank waits."""
    if first.how == "hung":
        yield f"the ranks did not end the row within {job.timeout:g} s: {_waiting_words(_waits(ended))}"
        return
    mark = ended.marks.get(first.rank, Mark())
    yield f"rank {first.rank} {first.what}{_last_call(mark)}"
    others = {rank: words for rank, words in _waits(ended).items() if rank != first.rank}
    if others:
        yield _waiting_words(others)


def _last_call(mark: Mark) -> str:
    return f", after {mark.action}" if mark.inside and mark.action else ""


def _waits(ended: Ended) -> dict[int, str]:
    """Return where each rank was: inside a collective, at a line of its own, or at the end of its program."""
    found: dict[int, str] = {}
    for rank, mark in ended.marks.items():
        if not mark.inside:
            found[rank] = f"had reached {mark.action or 'the start of the row'}"
            continue
        stack = ended.hung.get(rank, "")
        own = _own_line(stack)
        in_collective = "torch/distributed" in stack.partition('File "')[2].partition("\n")[0] if stack else True
        if in_collective and mark.action:
            found[rank] = f"waits in {mark.action}"
        elif own:
            found[rank] = f"was at {own}" + (f", after {mark.action}" if " at " in mark.action else "")
        else:
            found[rank] = f"was after {mark.action or 'the start of the row'}"
    return found


#: A frame of a stack that faulthandler wrote.
_FRAME = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


def _own_line(stack: str) -> str:
    """Return the innermost frame outside installed packages and the kit."""
    for file, line, name in _FRAME.findall(stack):
        if not any(part in file for part in ("site-packages", "/gradconform/", "lib/python", "/conformance/")):
            return f"{file.rpartition('/')[2]}:{line}, in {name}"
    return ""


def _detail(first: First) -> str:
    """Return the traceback of an error, without the frames of the kit; nothing of a hang, whose lines are named."""
    return first.detail if first.how != "hung" else ""


def wanted_rows(checks: Sequence[RowCheck], wanted: Collection[str]) -> dict[str, list[RowCheck]]:
    """Return the wanted checks of each row, in order."""
    found: dict[str, list[RowCheck]] = {}
    for check in checks:
        if check.id in wanted:
            found.setdefault(check.row.id, []).append(check)
    return found


def _waiting_words(waits: Mapping[int, str]) -> str:
    """Return where each rank waits, in one sentence; ranks at one place are named together."""
    places: dict[str, list[str]] = {}
    for rank, place in sorted(waits.items()):
        places.setdefault(place, []).append(str(rank))
    return "; ".join(f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)} {place}" for place, ranks in places.items())
