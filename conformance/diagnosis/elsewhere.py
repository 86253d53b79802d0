"""Gradients of somebody else: another micro-batch's forward, another stage's gradients, the stage in another mode."""

from __future__ import annotations

from collections.abc import Iterator

from gradconform.diagnosis.parts import microbatches, run_of
from gradconform.diagnosis.places import is_near
from gradconform.diagnosis.replay import Grads, Replay, replay
from gradconform.evidence import Evidence
from gradconform.observation import Step

#: How many micro-batches, and how many gradients that were returned before, are tried: those nearest in time.
_TRIED = 8


def of_other_microbatches(evidence: Evidence, step: Step, again: Replay) -> Iterator[tuple[str, Grads]]:
    """Yield the forward of another micro-batch with these output gradients, and the other way round."""
    lane, mb = step.action.stage, step.action.mb
    for other in _in_flight(evidence, step):
        theirs = replay(evidence, lane, other)
        if theirs.starts_otherwise(again.given):
            told = f"the forward of micro-batch {other} with the output gradients of micro-batch {mb}"
            yield f"{told}: contexts are mixed up", theirs.grads(again.given)
        if again.starts_otherwise(theirs.given):
            yield f"the output gradients are those of micro-batch {other}", again.grads(theirs.given)


def _in_flight(evidence: Evidence, step: Step) -> list[int]:
    """Return the other micro-batches that have run forward and not backward, the newest first."""
    own = [a for a in evidence.trial.actions[: step.position] if a.stage == step.action.stage and not a.misuse]
    gone = {a.mb for a in own if a.kind in {"B", "I"}} - {step.action.mb} if step.action.kind != "W" else set()
    started = [a.mb for a in own if a.kind == "F" and a.mb != step.action.mb and a.mb not in gone]
    return [mb for mb in reversed(started) if mb in microbatches(evidence, step.action.stage)][:_TRIED]


def of_other_stages(evidence: Evidence, step: Step, again: Replay) -> Iterator[tuple[str, Grads]]:
    """Yield what other stages of a chain had returned last, in place of what the one behind returned for this."""
    if not evidence.trial.chain:
        return
    earlier = [
        seen.action
        for seen in reversed(run_of(evidence, step).steps)
        if seen.position < step.position and seen.action.kind in {"B", "I"} and seen.action.stage
    ]
    own = (step.action.stage + 1, step.action.mb)
    for action in [seen for seen in earlier if (seen.stage, seen.mb) != own][:_TRIED]:
        starts = list(evidence.reference(action.stage, action.mb).inputs)
        if again.starts_otherwise(starts):
            told = f"the output gradients are what stage {action.stage} returned for micro-batch {action.mb}"
            yield f"{told}: a returned buffer was written again before it was read", again.grads(starts)


def in_eval_mode(evidence: Evidence, step: Step) -> Iterator[tuple[str, Grads]]:
    """Yield what the stage gives where dropout and the like are off."""
    lane, mb = step.action.stage, step.action.mb
    key = ("moded", lane)
    if key not in evidence.recomputed:
        pairs = zip(
            *(replay(evidence, lane, mb, training=mode).outputs.values() for mode in (True, False)), strict=True
        )
        evidence.recomputed[key] = not all(is_near(one, other) for one, other in pairs)
    if evidence.recomputed[key]:
        again = replay(evidence, lane, mb, training=False)
        yield "the stage is in eval mode", again.grads(again.given)
