"""Runs the rows of a sharded stage in ranks that torch's launcher starts, and gives the results of their checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from gradconform.diagnosis.cause import listed
from gradconform.exits import EXIT_USAGE, RunStoppedError
from gradconform.pipeline.exchange import Outcome
from gradconform.pipeline.ranks import Launcher, Machines
from gradconform.pipeline.verdicts import Ended
from gradconform.process.orphans import Orphans
from gradconform.process.worker import exit_in_words
from gradconform.results import Result

from .cases import Row, RowCheck, ShardedJob, calls_of, mesh_of
from .collectives import mismatch, read_calls

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
            yield row, list(_ended(row, own, ended, job, ranks.start.folder))
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


def _ended(row: Row, checks: Sequence[RowCheck], ended: Ended, job: ShardedJob, folder: Path) -> Iterator[Result]:
    """Yield the results of a row in which ranks ended: the first check has the message, the others name it."""
    first, *others = checks
    mesh = mesh_of(row)
    logs = [read_calls(folder / calls_of(rank)) for rank in range(mesh.ranks)]
    differs = mismatch(logs, mesh, ended=False)
    busy = bool(ended.hung and ended.overload and not differs)
    own = any(mark.inside for mark in ended.marks.values()) and not busy
    kit = not own and not busy and any(one.raised for one in ended.outcomes)
    said = [f"the ranks call other collectives: {differs}"] if differs else []
    yield first.result(
        job.device,
        job.dtype,
        status="failed" if own else "error",
        kind="error" if own else "kit" if kit else "environment",
        message="\n".join([*said, *_sentences(ended, job), row.tried, *(_tracebacks(ended) if kit else [])]),
    )
    for check in others:
        words = f"the ranks ended before it could be judged; see {first.id}"
        yield check.result(job.device, job.dtype, status="not_run", message=words)


def _sentences(ended: Ended, job: ShardedJob) -> Iterator[str]:
    """Yield what happened first, and where the other ranks were."""
    waits = _waits(ended)
    died = {rank: code for rank, code in ended.codes.items() if code not in {0, 1} and rank not in ended.hung}
    raised = [one for one in ended.outcomes if one.raised and one.rank not in ended.hung]
    if died:
        for rank, code in died.items():
            yield f"rank {rank} died ({exit_in_words(code)}); it {waits.pop(rank, 'was at its start')}"
            yield from filter(None, [ended.words.get(rank, "")])
    elif raised and not ended.hung:
        own = min(raised, key=lambda one: (_in_collective(one), one.at))
        waits = {rank: words for rank, words in waits.items() if rank != own.rank}
        where = _own_line(own.raised or "")
        yield f"rank {own.rank} raised {_first_line(own.cause)}" + (f" at {where}" if where else "")
    elif ended.hung:
        yield f"the ranks did not end the row within {job.timeout:g} s"
        yield from filter(None, [ended.overload])
    else:
        yield ended.launcher or "the ranks ended without a message"
    if waits:
        yield _waiting_words(waits)


def _tracebacks(ended: Ended) -> list[str]:
    """Return the traceback of an error of the kit."""
    return [one.raised.strip() for one in ended.outcomes if one.raised][:1]


def _in_collective(outcome: Outcome) -> bool:
    """Return whether an error was raised by a collective: it may only mean that another rank is gone."""
    frames = _FRAME.findall(outcome.raised or "")
    return bool(frames) and "torch/distributed" in frames[-1][0]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _waits(ended: Ended) -> dict[int, str]:
    """Return where each rank was: inside a collective, at a line of its own, or at the end of its program."""
    found: dict[int, str] = {}
    for rank, mark in ended.marks.items():
        stack = ended.hung.get(rank, "")
        frames, own = _FRAME.findall(stack), _own_line(stack, innermost_first=True)
        if not mark.inside:
            found[rank] = f"had reached {mark.action or 'the start of the row'}"
        elif frames and "torch/distributed" not in frames[0][0] and own:
            found[rank] = f"was at {own}" + (f", after {mark.action}" if " at " in mark.action else "")
        elif " at " in mark.action:
            found[rank] = f"{'waits in' if stack else 'was in'} {mark.action}"
        else:
            found[rank] = f"was after {mark.action or 'the start of the row'}"
    return found


#: A frame of a stack that faulthandler wrote, or of a traceback.
_FRAME = re.compile(r'File "([^"]+)", line (\d+),? in (\S+)')

#: Files that are not the user's: installed packages, Python, and the kit except its reference stages.
_FOREIGN = re.compile(r"site-packages|/lib/python|/(gradconform|conformance)/(?!reference/)")


def _own_line(stack: str, *, innermost_first: bool = False) -> str:
    """Return the innermost frame of the user's code."""
    frames = [frame for frame in _FRAME.findall(stack) if not _FOREIGN.search(frame[0])]
    if not frames:
        return ""
    file, line, name = frames[0 if innermost_first else -1]
    return f"{file.rpartition('/')[2]}:{line}, in {name}"


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
