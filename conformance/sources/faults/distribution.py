"""Distributes the subjects of a self-test to worker processes, and the remaining checks to every fault."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from gradconform.devices.prepared import ready
from gradconform.drive.reference64 import OracleCache
from gradconform.process.imports import TORCH
from gradconform.process.pipes import Message
from gradconform.process.serving import Orders, Send
from gradconform.process.worker import Exit, Worker, wait_for

from .outcome import Outcome
from .subject import SelftestOptions, Subject, hold, judge

#: The time limit of one subject in seconds. A run of the contract takes a few seconds, and minutes on a busy machine: a
#: slow run must not count as a hang.
TIME_LIMIT = 600.0


@dataclass(frozen=True, slots=True)
class _Job:
    """A subject to judge; or a fault with a ``known`` outcome, to judge by more ``checks``."""

    subject: Subject
    known: Outcome | None = None
    checks: tuple[str, ...] = ()

    def order(self) -> dict[str, Any]:
        """Return the order to a worker."""
        known = None if self.known is None else self.known.to_dict()
        return {"subject": self.subject, "known": known, "checks": self.checks}


def judge_all(  # noqa: PLR0913 (the subjects, the workers, their limits and the callback)
    options: SelftestOptions,
    subjects: Sequence[Subject],
    *,
    workers: int = 1,
    time_limit: float = TIME_LIMIT,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
    every_check: bool = False,
) -> list[Outcome]:
    """Judge every subject in one of ``workers`` processes; ``on_outcome`` receives each outcome when it is ready.

    A subject that takes longer than ``time_limit`` seconds, or that ends its process, has an outcome that says so. With
    ``every_check``, the checks that have failed nothing by then run on one fault after another.
    """
    found: dict[Subject, Outcome] = {}
    left = set(options.checks) if every_check else set[str]()

    def take(job: _Job, heard: Message | Exit) -> None:
        if job.known is None:
            found[job.subject] = _outcome(job.subject, heard)
            on_outcome(found[job.subject])
        elif not isinstance(heard, Exit):  # of what is known already nothing is lost where the rest ends a worker
            found[job.subject] = Outcome.from_dict(heard)
        outcome = found[job.subject]
        left.difference_update(outcome.failed if outcome.role == "fault" else (), dict(outcome.impossible))

    # A right variant runs all of the contract, a fault a few checks of it: what takes long is not to be begun last.
    ordered = sorted(subjects, key=lambda subject: subject[0] == "fault")
    _share(options, chain(map(_Job, ordered), _second(ordered, found, left)), workers, time_limit, take)
    return [found[subject] for subject in subjects]


def _second(subjects: Sequence[Subject], found: dict[Subject, Outcome], left: set[str]) -> Iterator[_Job]:
    """Yield each fault with the remaining checks at its turn, until none remain."""
    for subject in subjects:
        outcome = found.get(subject)  # none: it is being judged still
        if subject[0] == "fault" and outcome is not None and outcome.broke is None and outcome.named:
            checks = tuple(sorted(left.difference(outcome.named)))
            if checks:
                yield _Job(subject, outcome, checks)


def _share(
    options: SelftestOptions,
    jobs: Iterator[_Job],
    workers: int,
    time_limit: float,
    take: Callable[[_Job, Message | Exit], None],
) -> None:
    """Run the jobs in worker processes, each when a worker is free."""
    busy: dict[Worker, _Job] = {}

    def go_on(worker: Worker | None = None) -> None:
        """Give the next job to a worker or a new one; end it if there is none."""
        job = next(jobs, None)
        if job is not None:
            worker = worker or Worker(f"{__name__}:serve", options.to_dict(), imports=(*TORCH, __name__))
            busy[worker] = job
            worker.send(job.order())
            worker.expect(time_limit)
        elif worker is not None:
            worker.close()

    try:
        for _ in range(workers):
            go_on()
        while busy:
            wait_for(busy)
            for worker in list(busy):
                for heard in worker.listen():
                    take(busy.pop(worker), heard)
                    go_on(None if isinstance(heard, Exit) else worker)
    finally:
        for worker in busy:
            worker.close()


def _outcome(subject: Subject, heard: Message | Exit) -> Outcome:
    """Return a worker's outcome of a subject, or how the worker ended."""
    if not isinstance(heard, Exit):
        return Outcome.from_dict(heard)
    role, name = subject
    hung = heard.limit is not None
    broke = f"hung: no verdict after {heard.limit:.0f} s" if hung else f"crashed its worker, {heard.words}"
    return Outcome(role=role, name=name, broke=broke)


def serve(orders: Orders, send: Send) -> None:
    """Run as a worker: judge the ordered subjects, and run checks on faults."""
    torch.set_num_threads(1)
    options = SelftestOptions.from_dict(next(orders))
    if options.choice is not None:
        ready(options.choice)
    oracles = OracleCache()
    for order in orders:
        role, name = order["subject"]
        try:
            if order["known"] is None:
                outcome = judge(options, (role, name), oracles)
            else:
                outcome = hold(options, Outcome.from_dict(order["known"]), order["checks"], oracles)
        except Exception:  # noqa: BLE001 (reported to the caller: a defect of the kit or of the fault)
            outcome = Outcome(role=role, name=name, broke=f"could not be judged: {traceback.format_exc()}")
        send(outcome.to_dict())
