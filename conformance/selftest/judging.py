"""The subjects of a self-test shared among worker processes, and what is left of the contract given to every fault."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch

from gradconform.devices.prepared import ready
from gradconform.drive.reference64 import OracleCache
from gradconform.process.pipes import Message
from gradconform.process.serving import Orders, Send
from gradconform.process.worker import Exit, Worker, wait_for

from .subject import Outcome, SelftestOptions, Subject, hold, judge

#: How long one subject may take, in seconds. A run of the contract takes a few, and minutes where others want the
#: processor as well: what is slow is not to be taken for what hangs.
TIME_LIMIT = 600.0


@dataclass(frozen=True, slots=True)
class _Job:
    """A subject to be judged, or a fault, of which an outcome is ``known``, to be held against ``checks`` as well."""

    subject: Subject
    known: Outcome | None = None
    checks: tuple[str, ...] = ()

    def order(self) -> dict[str, Any]:
        """Return what a worker is told."""
        known = None if self.known is None else self.known.to_dict()
        return {"subject": self.subject, "known": known, "checks": self.checks}


def judge_all(  # noqa: PLR0913 (what is judged, by how many and how long, and who is told)
    options: SelftestOptions,
    subjects: Sequence[Subject],
    *,
    workers: int = 1,
    time_limit: float = TIME_LIMIT,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
    every_check: bool = False,
) -> list[Outcome]:
    """Judge every subject in one of ``workers`` processes; ``on_outcome`` sees each outcome as it comes.

    A subject that takes longer than ``time_limit`` seconds, or that ends its process, has an outcome that says so.
    With ``every_check`` the checks that have failed nothing by then are held against one fault after the other.
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
    """Yield each fault with what is left of the checks when its turn comes, until nothing is."""
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
    """Let worker processes do the jobs, each one when a worker is free for it."""
    busy: dict[Worker, _Job] = {}

    def go_on(worker: Worker | None = None) -> None:
        """Let a worker, or a new one, do the next job; end the one that has none."""
        job = next(jobs, None)
        if job is not None:
            worker = worker or Worker("gradconform.selftest.judging:serve", options.to_dict())
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
    """Return what a worker said of a subject, or what became of the worker."""
    if not isinstance(heard, Exit):
        return Outcome.from_dict(heard)
    role, name = subject
    hung = heard.limit is not None
    broke = f"hung: no verdict after {heard.limit:.0f} s" if hung else f"crashed its worker, {heard.words}"
    return Outcome(role=role, name=name, broke=broke)


def serve(orders: Orders, send: Send) -> None:
    """Do the work of a worker: judge the subjects that are ordered, and hold faults against checks."""
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
        except Exception:  # noqa: BLE001 (told to whoever asked: it is a defect of the kit or of the fault)
            outcome = Outcome(role=role, name=name, broke=f"could not be judged: {traceback.format_exc()}")
        send(outcome.to_dict())
