"""Queries to targets before the run, in separate processes: a target may hang or crash there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from gradconform.devices.probe import time_limit
from gradconform.exits import EXIT_ENVIRONMENT, RunRefusedError
from gradconform.process.imports import TORCH
from gradconform.process.orphans import Orphans
from gradconform.process.wait_notices import waiting
from gradconform.process.worker import Exit, Worker


def query_target(work: str, target: str, **given: Any) -> dict[str, Any]:
    """Return the first message of ``work``, ``module:function``, on a target; its child processes end with it.

    Raises :class:`~gradconform.exits.RunRefusedError` with the reason for a refusal, or how its process ended.
    """
    order = {"target": target, **given}
    wait = waiting(f"importing target {target!r}", time_limit())
    with wait, closing(Orphans()), closing(Worker(work, order, quiet=True, imports=TORCH)) as worker:
        worker.expect(time_limit())
        message = next(worker.messages())
    if isinstance(message, Exit):
        raise RunRefusedError(_ended(target, message), EXIT_ENVIRONMENT)
    return dict(message)


def _ended(target: str, ending: Exit) -> str:
    if ending.limit is not None:
        return f"target {target!r} did not load within {ending.limit:g} s"
    last = f": {ending.last_line}" if ending.last_line else ""
    return f"target {target!r} ended its process with {ending.words}{last}"


def query_targets(work: str, targets: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the message of ``work``, ``module:function``, on each of ``targets``, all run in one process.

    If that process ends at a target, this target's ``problem`` says how, and a new process continues with the next one.
    """
    left = list(targets)
    while left:
        with closing(Orphans()), closing(Worker(work, {"targets": left}, quiet=True, imports=TORCH)) as worker:
            worker.expect(time_limit())
            for message in worker.messages():
                target = left.pop(0)
                yield target, {"problem": _ended(target, message)} if isinstance(message, Exit) else dict(message)
                if not left:
                    break
                worker.expect(time_limit())
