"""Finds forwards that ran once too often, or again in the backward: with other buffers, or other random numbers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.trial.program import forward_of

from .cause import Cause, Mistake
from .parts import forward_right
from .rerun import Rerun, rerun, rerun_of


def with_more_forwards(evidence: Evidence, step: Step) -> Iterator[tuple[Cause, Rerun]]:
    """Yield the forward of a micro-batch on buffers that other forwards, or the same one, updated before it."""
    lane, mb = step.action.stage, step.action.mb
    if not any(buffer.is_floating_point() for buffer in rerun_of(evidence, step).stage.buffers()):
        return
    actions = evidence.trial.actions
    own = forward_of(actions, lane, mb, step.position + 1)
    ran = [(place, a.mb) for place, a in enumerate(actions[: step.position + 1]) if (a.kind, a.stage) == ("F", lane)]
    earlier = [other for place, other in ran if place < own]
    if step.action.kind != "F" and forward_right(evidence, step):
        kind, tried = Mistake.BUFFERS_NEW, [[other for place, other in ran if place >= own]]
    else:
        kind, tried = Mistake.FORWARD_TOO_OFTEN, [[mb], earlier, earlier[-1:], [*earlier, mb]]
    for forwards in [some for place, some in enumerate(tried) if some and some not in tried[:place]]:
        yield Cause(kind), rerun_of(evidence, step, partial(_run_first, evidence, lane, forwards))


def _run_first(evidence: Evidence, lane: int, microbatches: list[int], stage: nn.Module) -> None:
    args = [rerun(evidence, lane, mb, len(evidence.trial.actions)).args for mb in microbatches]  # kept with their graph
    with torch.no_grad():
        for some in args:
            stage(*some)


#: How many backwards may have run a forward again before this one, each of which drew random numbers.
_BEFORE = 2


def with_other_random_numbers(evidence: Evidence, step: Step) -> Iterator[tuple[Cause, Rerun]]:
    """Yield the forward of a micro-batch with the random state that the last forward before the backward left.

    Every forward starts from a seed of its micro-batch, so one that runs again draws other numbers unless the state is
    restored. Backwards before it may have drawn in the same way.
    """
    lane, earlier = step.action.stage, evidence.trial.actions[: step.position]
    if step.action.kind == "F" or not evidence.recomputed.of(("draws", lane), lambda: _draws(evidence, step)):
        return
    place = max(place for place, action in enumerate(earlier) if action.kind == "F")
    left = _Random()
    rerun(evidence, earlier[place].stage, earlier[place].mb, place + 1, left.watch)
    for _ in range(_BEFORE + 1):
        left = _Random(left.after)
        yield Cause(Mistake.DRAWN_AGAIN), rerun_of(evidence, step, left.watch)


def _draws(evidence: Evidence, step: Step) -> bool:
    watched = _Random()
    rerun_of(evidence, step, watched.watch)
    return not torch.equal(watched.before, watched.after)


class _Random:
    """The state of the CPU's generator, on which references run, before and after the forward of a watched stage."""

    before: Tensor
    after: Tensor

    def __init__(self, start: Tensor | None = None) -> None:
        """Start the forward from ``start``; None keeps the seed of the micro-batch."""
        self._start = start

    def watch(self, stage: nn.Module) -> None:
        """Watch the next forward of a stage."""
        stage.register_forward_pre_hook(self._begin)
        stage.register_forward_hook(self._end)

    def _begin(self, *_: object) -> None:
        if self._start is not None:
            torch.set_rng_state(self._start)
        self.before = torch.get_rng_state()

    def _end(self, *_: object) -> None:
        self.after = torch.get_rng_state()
