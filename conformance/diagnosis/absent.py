"""Gradients that are not there: never accumulated, cleared, returned in another slot, lost with a weight context."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gradconform.diagnosis import contexts
from gradconform.diagnosis.parts import added, output_grads_at, run_of, step_before
from gradconform.diagnosis.places import is_value
from gradconform.diagnosis.question import dense
from gradconform.evidence import Evidence
from gradconform.fixtures.inputs import ParameterNamed
from gradconform.observation import Step


def of_param(evidence: Evidence, name: str, step: Step) -> str:
    """Say why a parameter has no gradient."""
    before = step_before(evidence, step)
    if before is not None and before.param_grads.get(name) is not None:
        return "cleared after it was accumulated"
    why = (
        _after_error(evidence, step, lambda seen: not added(evidence, seen))
        or nothing_added(evidence, step)
        or _no_flow(evidence, step)
    )
    return f"never accumulated: {why}" if why else "never accumulated"


def of_input(evidence: Evidence, slot: int, step: Step) -> str | None:
    """Say where the gradient of an input went that was not returned."""
    recipe = evidence.trial.stages[step.action.stage].inputs[slot]
    if isinstance(recipe, ParameterNamed) and not (evidence.trial.chain and step.action.stage):
        return "not returned: the argument is a parameter of the stage"
    right = evidence.reference(step.action.stage, step.action.mb).inputs[slot]
    for other, grad in enumerate(step.input_grads or ()):
        if grad is not None and right is not None and other != slot and is_value(grad, dense(right)):
            return f"returned for input {other}: slots are swapped or shifted"
    why = _after_error(evidence, step, lambda seen: not any(g is not None for g in seen.input_grads or ()))
    why = why or _no_flow(evidence, step)
    return f"not returned: {why}" if why else None


def _no_flow(evidence: Evidence, step: Step) -> str | None:
    """Say what is special about output gradients that an action did nothing at all with."""
    if any(grad is not None for grad in step.input_grads or ()) or added(evidence, step):
        return None
    given = output_grads_at(evidence, step.action.stage, step.action.mb)
    tensors = [grad for grad in given if isinstance(grad, Tensor)]
    if tensors and not any(grad.numel() for grad in tensors):
        return "the output gradients have no elements, and may be taken for None"
    if tensors and not any(bool(grad.any()) for grad in tensors):
        return "the output gradients are zeros, and may be taken for None"
    return None


def nothing_added(evidence: Evidence, step: Step) -> str | None:
    """Say why a B or W has added nothing to any parameter, where the whole run shows it."""
    if step.action.kind not in {"B", "W"} or added(evidence, step):
        return None
    return _too_early(evidence, step) or _went_elsewhere(evidence, step) or contexts.lost(evidence, step)


def _after_error(evidence: Evidence, step: Step, idle: Callable[[Step], bool]) -> str | None:
    """Name the error since which nothing has come of anything."""
    seen = run_of(evidence, step).steps
    errors = [known for known in seen if known.action.misuse and known.raised and known.position < step.position]
    if not errors:
        return None
    since = [known for known in seen if errors[-1].position < known.position <= step.position]
    kinds = {"B", "W"} if step.action.kind in {"B", "W"} else {"B", "I"}
    acted = [known for known in since if known.action.kind in kinds and not known.action.misuse]
    return f"nothing has been since the error in {errors[-1].action}" if acted and all(map(idle, acted)) else None


def _too_early(evidence: Evidence, step: Step) -> str | None:
    """Name the W that came before its I, raised nothing, and was all that came of it."""
    early = [
        seen
        for seen in run_of(evidence, step).steps
        if seen.action.misuse and seen.action.kind == "W" and not seen.raised and seen.position < step.position
    ]
    same = [seen for seen in early if (seen.action.stage, seen.action.mb) == (step.action.stage, step.action.mb)]
    return f"{same[-1].action} before its I has used up its turn" if same and step.action.kind == "W" else None


def _went_elsewhere(evidence: Evidence, step: Step) -> str | None:
    """Name another stage whose parameters changed though none of its actions changed them."""
    seen = run_of(evidence, step).steps
    for lane in range(len(evidence.trial.stages)):
        own = [known for known in seen if known.action.stage == lane]
        after = next((known for known in own if known.position > step.position), None)
        if lane == step.action.stage or after is None or after.action.kind in {"B", "W"}:
            continue
        before = step_before(evidence, after)
        between = before is None or before.position < step.position
        if between and added(evidence, after):
            return f"the work of stage {lane} was done in its place"
    return None
