"""The parts that a gradient should be the sum of, or may contain by mistake: one per micro-batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Observation, Step
from gradconform.drive.reference64 import widen
from gradconform.trees import equal, leaves
from gradconform.trial.program import CHANGES, ZEROES, forward_of

from .wrong_tensor import Wrong, dense, is_near


@dataclass(frozen=True, slots=True)
class Part:
    """One possible part of a gradient: its micro-batch, its float64 value, and its right count.

    ``mb`` is None for the value before the first action; ``own``: the action itself has to add it.
    """

    mb: int | None
    value: Tensor
    wanted: float
    own: bool = False


def param_parts(evidence: Evidence, name: str, step: Step) -> Iterator[Part]:
    """Yield the parts that parameter ``name`` may hold after ``step``."""
    lane, since = step.action.stage, _last_change(evidence, step)
    done: dict[int, float] = {}
    cleared = since > 0
    for position, action in enumerate(evidence.trial.actions[since : step.position + 1], since):
        if action.stage == lane and not action.misuse and action.kind in {"B", "W"}:
            done[action.mb] = done.get(action.mb, 0.0) + (not evidence.is_frozen(lane, name, position))
        elif action.kind in ZEROES:
            done, cleared, since = dict.fromkeys(done, 0.0), True, 0
    if since:  # gradients of micro-batches computed with other parameter values
        earlier = evidence.expected_param(name, Step.of({"action": step.action, "position": since - 1})).total
        yield from () if earlier is None else (Part(None, earlier, 1.0),)
    others = _of_other_sessions(evidence, name, step)
    if others is not None:
        yield Part(None, others, 1.0)
    if evidence.trial.prior_grads:
        yield Part(None, prior(evidence, name, lane), 0.0 if cleared else 1.0)
    adds = step.action.kind in {"B", "W"}
    for mb in microbatches(evidence, lane):
        grad = evidence.reference(lane, mb, step.position + 1).params.get(name)
        if grad is not None:
            yield Part(mb, dense(grad), done.get(mb, 0.0), adds and mb == step.action.mb)


def _of_other_sessions(evidence: Evidence, name: str, step: Step) -> Tensor | None:
    """Return what other sessions added to a shared parameter; None if that is unknown."""
    lane, actions = step.action.stage, evidence.trial.actions[: step.position + 1]
    if evidence.trial.sharing(lane, name) == {lane} or {action.kind for action in actions} & (ZEROES | CHANGES):
        return None
    added = [
        evidence.reference(action.stage, action.mb, position).params[name]
        for position, action in enumerate(actions)
        if action.stage in evidence.trial.sharing(lane, name) - {lane}
        and action.kind in {"B", "W"}
        and not action.misuse
    ]
    grads = [dense(grad) for grad in added if grad is not None]
    return torch.stack(grads).sum(0) if grads else None


def _last_change(evidence: Evidence, step: Step) -> int:
    """Return the position after the last word that changed the parameters up to a step; 0 without one."""
    sharing = evidence.trial.sharing(step.action.stage)
    places = (
        position
        for position, action in enumerate(evidence.trial.actions[: step.position + 1], 1)
        if action.kind in CHANGES and action.stage in sharing
    )
    return max(places, default=0)


def input_parts(evidence: Evidence, slot: int, step: Step) -> Iterator[Part]:
    """Yield the parts that the gradient of input ``slot`` may hold."""
    lane = step.action.stage
    for mb in microbatches(evidence, lane):
        grad = evidence.reference(lane, mb, step.position + 1).inputs[slot]
        if grad is not None:
            yield Part(mb, dense(grad), float(mb == step.action.mb), mb == step.action.mb)


def microbatches(evidence: Evidence, lane: int) -> list[int]:
    """Return the micro-batches that run forward on a stage."""
    return sorted({action.mb for action in evidence.trial.actions if action.kind == "F" and action.stage == lane})


def prior(evidence: Evidence, name: str, lane: int) -> Tensor:
    """Return the gradient of a parameter before the first action."""
    names = list(evidence.reference(lane, 0).params)
    found: Tensor = widen(evidence.materials.prior_of(lane, names.index(name)))
    return found


def sum_of(parts: list[Part]) -> Tensor | None:
    """Return the right value: the sum of the parts, each by its right count."""
    wanted = [part.value * part.wanted for part in parts if part.wanted]
    return torch.stack(wanted).sum(0) if wanted else None


def own_part(wrong: Wrong, parts: Sequence[Part]) -> Tensor | None:
    """Return the part that the action itself has to add to a wrong tensor; None if there is none of its shape."""
    own = next((part.value for part in parts if part.own and part.wanted), None)
    return own if own is not None and own.shape == wrong.got.shape else None


def output_grads_at(evidence: Evidence, lane: int, mb: int, paths: list[str] | None = None) -> tuple[object, ...]:
    """Return the right output gradients of one stage, one per leaf of its outputs; none if it ends in a loss.

    They are in the order of ``paths``, those of the outputs, or as they are passed.
    """
    if evidence.trial.loss_at(lane):
        return ()
    if evidence.trial.chain and lane + 1 < len(evidence.trial.stages):
        return evidence.reference(lane + 1, mb).inputs
    given = dict(leaves(evidence.materials.output_grads(lane, mb)))
    return tuple(given[path] for path in (given if paths is None else paths))


def run_of(evidence: Evidence, step: Step) -> Observation:
    """Return the observation to which ``step`` belongs: a trial may run several times."""
    return next(seen for seen in evidence.observations if any(known is step for known in seen.steps))


def of_microbatch(evidence: Evidence, step: Step) -> Iterator[Step]:
    """Yield the steps of the same run, stage and micro-batch, since its F: its number may have been used before."""
    lane, mb = step.action.stage, step.action.mb
    since = forward_of(evidence.trial.actions, lane, mb, step.position + 1)
    own = (known for known in run_of(evidence, step).steps if (known.action.stage, known.action.mb) == (lane, mb))
    return (known for known in own if forward_of(evidence.trial.actions, lane, mb, known.position + 1) == since)


def forward_right(evidence: Evidence, step: Step) -> bool:
    """Return whether the micro-batch's outputs were right: after wrong ones no gradient can be right."""
    found: bool = evidence.recomputed.of(("forward right", id(step)), lambda: _outputs_right(evidence, step))
    return found


def _outputs_right(evidence: Evidence, step: Step) -> bool:
    forward = next((seen for seen in of_microbatch(evidence, step) if seen.action.kind == "F"), None)
    if forward is None:
        return True
    return all(map(is_near, forward.outputs or (), evidence.oracle_step(forward).outputs or ()))


def step_before(evidence: Evidence, step: Step) -> Step | None:
    """Return the step before on the same stage, or on any that is the same module; None for the first."""
    earlier = [
        known
        for known in run_of(evidence, step).steps
        if known.position < step.position and (evidence.trial.one_module or known.action.stage == step.action.stage)
    ]
    return earlier[-1] if earlier else None


def held_before(evidence: Evidence, name: str, step: Step) -> Tensor | None:
    """Return, in float64, the observed gradient of parameter ``name`` before ``step``."""
    before = step_before(evidence, step)
    if before is not None:
        held = before.param_grads.get(name)
        return None if held is None else dense(widen(held))
    return prior(evidence, name, step.action.stage) if evidence.trial.prior_grads else None


def added(evidence: Evidence, step: Step) -> bool:
    """Return whether any parameter's gradient changed in an action."""
    before = step_before(evidence, step)
    held = {} if before is None else before.param_grads
    return any(not same(held.get(name), grad) for name, grad in step.param_grads.items())


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """Return whether two gradients are the same, or both None."""
    if one is None or other is None or one is other:
        return one is other
    return one.shape == other.shape and equal(dense(one), dense(other))
