"""Worker processes of the self-test: each keeps plain autograd's part to itself and judges one subject at a time.

Processes of our own rather than a pool: a pool that loses a worker loses every task that waits, and cannot stop one
that hangs.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from gradconform.devices.naming import ready
from gradconform.oracle_cache import OracleCache
from gradconform.selftest.subject import Outcome, Question, Subject, judge

#: How long one subject may take, in seconds; a run of the contract takes a few.
TIME_LIMIT = 120.0


class _Worker:
    """One process, the pipe to it, and what it is at."""

    def __init__(self, question: Question) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_work, args=(question, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.subject: Subject | None = None
        self.since = 0.0

    def ask(self, subject: Subject) -> None:
        self.subject, self.since = subject, time.monotonic()
        self.pipe.send(subject)

    def answer(self) -> Outcome:
        """Return the outcome that has come, or what became of the worker."""
        role, name = self.subject or ("fault", "")
        try:
            outcome: Outcome = self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return Outcome(role=role, name=name, broke=f"crashed its worker, exit code {self.process.exitcode}")
        return outcome

    def stop(self) -> None:
        """End the process, whatever it is at."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(5)
            if self.process.is_alive():
                self.process.kill()
        self.process.join()


def judge_all(
    question: Question,
    subjects: Sequence[Subject],
    *,
    workers: int = 1,
    time_limit: float = TIME_LIMIT,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> list[Outcome]:
    """Judge every subject in one of ``workers`` processes; ``on_outcome`` sees each outcome as it comes.

    A subject that takes longer than ``time_limit`` seconds, or that ends its process, has an outcome that says so.
    """
    waiting = deque(subjects)
    found: dict[Subject, Outcome] = {}
    with _hired(question, min(workers, len(subjects))) as busy:
        for worker in busy:
            worker.ask(waiting.popleft())
        while busy:
            for worker, outcome in _answers(busy, time_limit):
                found[outcome.role, outcome.name] = outcome
                on_outcome(outcome)
                busy.remove(worker)
                if outcome.broke is not None or not waiting:
                    worker.stop()
                if waiting:
                    following = _Worker(question) if outcome.broke is not None else worker
                    busy.append(following)
                    following.ask(waiting.popleft())
    return [found[subject] for subject in subjects]


@contextmanager
def _hired(question: Question, count: int) -> Iterator[list[_Worker]]:
    workers = [_Worker(question) for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def _answers(busy: list[_Worker], time_limit: float) -> Iterator[tuple[_Worker, Outcome]]:
    """Wait a moment; yield the workers that have answered, died, or taken too long."""
    ready = wait([worker.pipe for worker in busy], timeout=1.0)
    for worker in list(busy):
        if worker.pipe in ready:
            yield worker, worker.answer()
        elif worker.subject is not None and time.monotonic() - worker.since > time_limit:
            role, name = worker.subject
            yield worker, Outcome(role=role, name=name, broke=f"hung: no verdict after {time_limit:.0f} s")


def _work(question: Question, pipe: Connection) -> None:
    """Judge what comes through the pipe until it is closed."""
    import torch  # noqa: PLC0415 (in the worker alone)

    torch.set_num_threads(1)
    if question.choice is not None:
        ready(question.choice)
    oracles = OracleCache()
    while True:
        try:
            subject: Subject = pipe.recv()
        except EOFError:
            return
        try:
            outcome = judge(question, subject, oracles)
        except Exception:  # noqa: BLE001 (told to whoever asked: it is a defect of the kit or of the fault)
            role, name = subject
            outcome = Outcome(role=role, name=name, broke=f"could not be judged: {traceback.format_exc()}")
        pipe.send(outcome)
