"""Starts the ranks of this machine, follows what they write, and goes on with fresh ones where one ends a case.

Nothing here imports torch but what it starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from gradconform.pipeline.blame import Ended, charged, verdict_on
from gradconform.pipeline.question import Case, Question
from gradconform.pipeline.records import Record, read_records, result_of
from gradconform.results import Result

#: What stands in the target's place to tell whether torch's runtime, or the machine, is to blame.
REFERENCE = "reference-split"

#: How often a run starts afresh: a target that ends the ranks in every case would cost a start for each.
STARTS = 10

_PERIOD_S = 0.05
#: What the ranks may take to start, and to end, beside their cases, in seconds.
_AROUND_S = 120

OnResult = Callable[[Result], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """How many ranks there are and where: ``ranks`` of all machines together, ``endpoint`` where they meet.

    ``endpoint`` is ``host:port``, the same on every machine, and ``run`` a name that they share.
    """

    ranks: int
    machines: int = 1
    endpoint: str = "localhost:0"
    run: str = ""

    @property
    def here(self) -> int:
        """The number of ranks on this machine."""
        return self.ranks // self.machines


def run_pipeline(question: Question, machines: Machines, on_result: OnResult) -> str | None:
    """Run every case and hand its result to ``on_result``; return why the run stopped early, or None.

    What fails is run again with the kit's own correct split backward in the target's place, before it is told.
    """
    wrong: list[Result] = []

    def sorted_out(result: Result) -> None:
        if result.status in {"failed", "error"} and machines.machines == 1:
            wrong.append(result)
        else:
            on_result(result)

    stopped = _run_all(question, machines, sorted_out)
    if wrong:
        of_reference = _of_reference([result.check for result in wrong], question, machines)
        for result in wrong:
            on_result(charged(result, of_reference.get(result.check)))
    return stopped


def _of_reference(wrong: list[str], question: Question, machines: Machines) -> dict[str, Result]:
    """Return the results of the reference on the cases with these ids."""
    cases = tuple(case for case in question.cases if case.id in wrong)
    found: list[Result] = []
    _run_all(replace(question, cases=cases, target=REFERENCE), machines, found.append)
    return {result.check: result for result in found}


def _run_all(question: Question, machines: Machines, on_result: OnResult) -> str | None:
    left = question.cases
    for start in range(STARTS):
        with tempfile.TemporaryDirectory(prefix="gradconform-", ignore_cleanup_errors=True) as name:
            done = _one_start(replace(question, cases=left), machines, Path(name), on_result, start)
        left = left[done:]
        if not left:
            return None
        if machines.machines > 1:
            return "a rank ended; runs on several machines are not started afresh"
    return f"ranks ended early {STARTS} times"


def _one_start(question: Question, machines: Machines, folder: Path, on_result: OnResult, start: int) -> int:
    """Start the ranks once; return how many cases have a result afterwards, that of the one they ended in included."""
    (folder / "question.json").write_text(question.to_json(), encoding="utf-8")
    (folder / "launch.json").write_text(json.dumps(_launch_options(machines, start)), encoding="utf-8")
    done = 0
    with _agent(folder) as agent:
        for case, records in _followed(question, machines.ranks, folder, agent):
            if any(record.raised for record in records) or len(records) < machines.ranks:
                break
            on_result(result_of(case, records, device=question.device, dtype=question.dtype))
            done += 1
        if done == len(question.cases):
            return done
        _wait(agent)
    on_result(verdict_on(question.cases[done], Ended(folder, machines.ranks), question))
    return done + 1


def _launch_options(machines: Machines, start: int) -> dict[str, object]:
    run = f"{machines.run or uuid.uuid4().hex}-{start}"
    return {
        "min_nodes": machines.machines,
        "max_nodes": machines.machines,
        "nproc_per_node": machines.here,
        "run_id": run,
        "rdzv_endpoint": machines.endpoint,
        "local_addr": None if machines.machines > 1 else "localhost",
    }


@contextlib.contextmanager
def _agent(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start torch's launcher in a session of its own, and leave nothing of it behind."""
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    command = [sys.executable, "-m", "gradconform.pipeline.agent", str(folder)]
    with (folder / "agent.log").open("wb") as log:
        agent = subprocess.Popen(  # noqa: S603 (our own module)
            command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield agent
    except BaseException:
        agent.send_signal(signal.SIGTERM)  # the launcher ends its ranks
        raise
    finally:
        _wait(agent)


def _wait(agent: subprocess.Popen[bytes]) -> None:
    try:
        agent.wait(_AROUND_S)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()


def _followed(
    question: Question, ranks: int, folder: Path, agent: subprocess.Popen[bytes]
) -> Iterator[tuple[Case, list[Record]]]:
    """Yield each case with its records as soon as every rank has written; fewer records where the ranks are gone."""
    files = [folder / f"rank-{rank}.ndjson" for rank in range(ranks)]
    for case in question.cases:
        deadline = time.monotonic() + question.timeout + _AROUND_S
        while True:
            ended = agent.poll() is not None
            records = [record for file in files for record in read_records(file) if record.case == case.id]
            if len(records) == ranks or ended or any(record.raised for record in records):
                break
            if time.monotonic() > deadline:
                agent.send_signal(signal.SIGTERM)
                break
            time.sleep(_PERIOD_S)
        yield case, records
