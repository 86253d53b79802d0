"""What a command asks of a target before anything is judged, in a process of its own: it may hang or crash there."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from gradconform.devices.probe import time_limit
from gradconform.exits import EXIT_ENVIRONMENT, RunRefusedError
from gradconform.process.orphans import Orphans
from gradconform.process.worker import Exit, Worker


def told_apart(work: str, target: str, **given: Any) -> dict[str, Any]:
    """Return what ``work``, ``module:function``, tells of a target as the first thing; what it starts ends with it.

    Raises :class:`~gradconform.exits.RunRefusedError` with what refused it, or how its process ended.
    """
    with closing(Orphans()), closing(Worker(work, {"target": target, **given}, quiet=True)) as worker:
        worker.expect(time_limit())
        said = next(worker.told())
    if not isinstance(said, Exit):
        return dict(said)
    if said.limit is not None:
        msg = f"target {target!r} did not load within {said.limit:g} s"
    else:
        last = f": {said.last_line}" if said.last_line else ""
        msg = f"target {target!r} ended its process with {said.words}{last}"
    raise RunRefusedError(msg, EXIT_ENVIRONMENT)
