"""What a command asks of targets before anything is judged, in processes of their own: they may hang or crash there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

from gradconform.devices.probe import time_limit
from gradconform.exits import EXIT_ENVIRONMENT, RunRefusedError
from gradconform.process.orphans import Orphans
from gradconform.process.waits import waiting
from gradconform.process.worker import Exit, Worker


def told_apart(work: str, target: str, **given: Any) -> dict[str, Any]:
    """Return what ``work``, ``module:function``, tells of a target as the first thing; what it starts ends with it.

    Raises :class:`~gradconform.exits.RunRefusedError` with what refused it, or how its process ended.
    """
    wait = waiting(f"importing target {target!r}", time_limit())
    with wait, closing(Orphans()), closing(Worker(work, {"target": target, **given}, quiet=True)) as worker:
        worker.expect(time_limit())
        said = next(worker.told())
    if isinstance(said, Exit):
        raise RunRefusedError(_ended(target, said), EXIT_ENVIRONMENT)
    return dict(said)


def _ended(target: str, said: Exit) -> str:
    if said.limit is not None:
        return f"target {target!r} did not load within {said.limit:g} s"
    last = f": {said.last_line}" if said.last_line else ""
    return f"target {target!r} ended its process with {said.words}{last}"


def each_told_apart(work: str, targets: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what ``work``, ``module:function``, tells of each of ``targets``, which it is given in one process.

    Where that process ends over one of them, its ``problem`` says how, and another process is given those behind it.
    """
    left = list(targets)
    while left:
        with closing(Orphans()), closing(Worker(work, {"targets": left}, quiet=True)) as worker:
            worker.expect(time_limit())
            for said in worker.told():
                target = left.pop(0)
                yield target, {"problem": _ended(target, said)} if isinstance(said, Exit) else dict(said)
                if not left:
                    break
                worker.expect(time_limit())
