"""Finds why a gradient is missing: never accumulated, cleared, in another slot, or lost with a weight context."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate

from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.fixtures.inputs import ParameterNamed
from gradconform.trial.program import Action

from . import no_effect
from .cause import Cause, Mistake
from .misdirected import recomputed_alone
from .parts import added, of_microbatch, output_grads_at, run_of, step_before
from .rerun import rerun_of
from .wrong_start import left_out_of_the_outputs
from .wrong_tensor import dense, is_value


def of_param(evidence: Evidence, name: str, step: Step) -> Cause:
    """Return why a parameter has no gradient."""
    before = step_before(evidence, step)
    if before is not None and before.param_grads.get(name) is not None:
        return Cause(Mistake.CLEARED, why=no_effect.of_some(evidence, name, step))
    if any(isinstance(one, ParameterNamed) and one.name == name for one in _arguments(evidence, step)):
        return Cause(Mistake.ARGUMENT_DETACHED)
    why = (
        _after_error(evidence, step, lambda seen: not added(evidence, seen))
        or nothing_added(evidence, step)
        or _no_flow(evidence, step)
        or recomputed_alone(evidence, name, step)
        or no_effect.of_some(evidence, name, step)
        or _hook_of_the_caller(evidence, step)
        or no_effect.circumstance(evidence, step)
    )
    return Cause(Mistake.NEVER_ACCUMULATED, why=why)


def of_input(evidence: Evidence, slot: int, step: Step) -> Cause | None:
    """Return where the missing gradient of an input went."""
    recipe = _arguments(evidence, step)[slot]
    if isinstance(recipe, ParameterNamed) and not (evidence.trial.chain and step.action.stage):
        return Cause(Mistake.NOT_RETURNED, why=Cause(Mistake.ARGUMENT_IS_PARAMETER))
    right = evidence.reference(step.action.stage, step.action.mb).inputs[slot]
    for other, grad in enumerate(step.input_grads or ()):
        if grad is not None and right is not None and other != slot and is_value(grad, dense(right)):
            return Cause(Mistake.RETURNED_ELSEWHERE, slots=(other,))
    why = _after_error(evidence, step, lambda seen: not any(g is not None for g in seen.input_grads or ()))
    why = why or _no_flow(evidence, step) or _unused(evidence, step) or _past_count(evidence, step)
    why = why or (Cause(Mistake.STAGES_AT_ONCE) if evidence.trial.at_once else None)
    return Cause(Mistake.NOT_RETURNED, why=why) if why else None


def _arguments(evidence: Evidence, step: Step) -> Sequence[object]:
    """Return the recipes of the arguments of an action's stage."""
    return evidence.trial.stages[step.action.stage].inputs


def _no_flow(evidence: Evidence, step: Step) -> Cause | None:
    """Return what is special about output gradients that an action ignored completely."""
    if any(grad is not None for grad in step.input_grads or ()) or added(evidence, step):
        return None
    again = rerun_of(evidence, step)
    fixed = not any(grad is not None for grad in evidence.reference(step.action.stage, step.action.mb).inputs)
    if (
        not fixed
        and any(grad is not None for grad in again.given)
        and not any(grad is not None for grad in left_out_of_the_outputs(again))
    ):
        return Cause(Mistake.OUTPUTS_SHIFT)
    given = output_grads_at(evidence, step.action.stage, step.action.mb)
    tensors = [grad for grad in given if isinstance(grad, Tensor)]
    if tensors and not any(grad.numel() for grad in tensors):
        return Cause(Mistake.OUTPUT_GRADS_EMPTY)
    if tensors and not any(bool(grad.any()) for grad in tensors):
        return Cause(Mistake.OUTPUT_GRADS_ZERO)
    return None


def _hook_of_the_caller(evidence: Evidence, step: Step) -> Cause | None:
    """Return the cause that hooks move a gradient away after it is accumulated, but nothing was moved."""
    return None if evidence.trial.altering != "move" or added(evidence, step) else Cause(Mistake.MOVED_BY_HOOK)


def _unused(evidence: Evidence, step: Step) -> Cause | None:
    """Return the cause that no gradient at all was returned, if one argument that needs a gradient is unused."""
    again = rerun_of(evidence, step)
    right = evidence.reference(step.action.stage, step.action.mb).inputs
    unused = any(
        isinstance(arg, Tensor) and arg.requires_grad and grad is None
        for arg, grad in zip(again.args, right, strict=True)
    )
    none = not any(grad is not None for grad in step.input_grads or ())
    return Cause(Mistake.UNUSED_ARGUMENT) if unused and none else None


def _past_count(evidence: Evidence, step: Step) -> Cause | None:
    """Return the cause that the arguments past a number get no gradient, and all before it get theirs."""
    right = evidence.reference(step.action.stage, step.action.mb).inputs
    wanted = [slot for slot, grad in enumerate(right) if grad is not None]
    given = [slot for slot in wanted if step.input_grads is not None and step.input_grads[slot] is not None]
    past = len(given) >= no_effect.MANY and given == wanted[: len(given)]
    return Cause(Mistake.ARGUMENTS_PAST_COUNT, counts=(len(given),)) if past else None


def nothing_added(evidence: Evidence, step: Step) -> Cause | None:
    """Return why a B or W has added nothing to any parameter, if the whole run shows it."""
    found: Cause | None = evidence.recomputed.of(
        ("nothing added", id(step)), lambda: _reason_for_nothing(evidence, step)
    )
    return found


def _reason_for_nothing(evidence: Evidence, step: Step) -> Cause | None:
    if step.action.kind not in {"B", "W"} or added(evidence, step):
        return None
    return (
        _too_early(evidence, step)
        or _went_to_other_stage(evidence, step)
        or _lost(evidence, step)
        or no_effect.reason(evidence, step)
    )


def _after_error(evidence: Evidence, step: Step, quiet: Callable[[Step], bool]) -> Cause | None:
    """Return the error after which no action gives anything."""
    seen = run_of(evidence, step).steps
    errors = [known for known in seen if known.action.misuse and known.raised and known.position < step.position]
    if not errors:
        return None
    since = [known for known in seen if errors[-1].position < known.position <= step.position]
    kinds = {"B", "W"} if step.action.kind in {"B", "W"} else {"B", "I"}
    acted = [known for known in since if known.action.kind in kinds and not known.action.misuse]
    nothing_since = Cause(Mistake.IDLE_SINCE_ERROR, action=str(errors[-1].action))
    return nothing_since if acted and all(map(quiet, acted)) else None


def _too_early(evidence: Evidence, step: Step) -> Cause | None:
    """Return the W that came before its I, raised nothing, and had no other effect."""
    earlier = [seen for seen in of_microbatch(evidence, step) if seen.position < step.position]
    early = [seen for seen in earlier if seen.action.misuse and seen.action.kind == "W" and not seen.raised]
    too_early = bool(early) and step.action.kind == "W"
    return Cause(Mistake.WEIGHT_TOO_EARLY, action=str(early[-1].action)) if too_early else None


def _went_to_other_stage(evidence: Evidence, step: Step) -> Cause | None:
    """Return another stage whose parameters changed, though none of its actions changed them."""
    seen = run_of(evidence, step).steps
    for lane in range(len(evidence.trial.stages)):
        own = [known for known in seen if known.action.stage == lane]
        after = next((known for known in own if known.position > step.position), None)
        if lane == step.action.stage or after is None or after.action.kind in {"B", "W"}:
            continue
        before = step_before(evidence, after)
        between = before is None or before.position < step.position
        if between and added(evidence, after):
            return Cause(Mistake.DONE_FOR_OTHER_STAGE, stage=lane)
    return None


#: The least number of W that distinguish one rule from another.
_TELLING = 3

#: How many equally good rules are reported; more are no help.
_MOST_CAUSES = 2

#: Maps the weight-related actions of all stages, in order, to the W that find their context.
Rule = Callable[[list[Action]], set[Action]]


def _lost(evidence: Evidence, step: Step) -> Cause | None:
    """Return the rule by which contexts are lost, if it predicts for every W of the run whether it added anything."""
    if step.action.kind != "W":
        return None
    run = run_of(evidence, step).steps
    steps = [seen for seen in run if seen.action.kind in {"B", "I", "W"} and not seen.action.misuse]
    if any(seen.raised for seen in run) or sum(seen.action.kind == "W" for seen in steps) < _TELLING:
        return None
    done = {seen.action for seen in steps if seen.action.kind == "W" and added(evidence, seen)}
    if not done:
        return None
    actions = [seen.action for seen in steps]
    if len(set(actions)) < len(actions):  # a repeated W is another one, which a rule does not distinguish
        return None
    fitting = tuple(cause for cause, rule in rules(actions) if rule(actions) == done)
    return Cause(Mistake.CONTEXTS_LOST, causes=fitting) if 0 < len(fitting) <= _MOST_CAUSES else None


def rules(actions: list[Action]) -> Iterator[tuple[Cause, Rule]]:
    """Yield the ways in which contexts get lost, each with the W that still find theirs."""
    yield Cause(Mistake.FIRST_WEIGHT_ONLY), _first
    yield Cause(Mistake.NEWEST_CONTEXT_KEPT), partial(_found, partial(_newest, 1))
    most = max(accumulate({"I": 1, "W": -1}.get(action.kind, 0) for action in actions), default=0)
    for count in range(2, most):
        yield Cause(Mistake.NEWEST_CONTEXTS_KEPT, counts=(count,)), partial(_found, partial(_newest, count))
    yield Cause(Mistake.LOST_AT_FULL_BACKWARD), partial(_found, _no_full_between)
    if len({action.stage for action in actions}) > 1:
        yield Cause(Mistake.KEPT_BY_MICROBATCH), partial(_found, _by_microbatch)
        yield Cause(Mistake.DROPPED_WHERE_ANOTHER_WAITS), partial(_found, _alone)
        yield Cause(Mistake.OLDEST_OF_ANY_STAGE), partial(_found, partial(_taken, 0))
        yield Cause(Mistake.NEWEST_OF_ANY_STAGE), partial(_found, partial(_taken, -1))


def _first(actions: list[Action]) -> set[Action]:
    weights = [action for action in actions if action.kind == "W"]
    return {action for place, action in enumerate(weights) if action.stage not in {a.stage for a in weights[:place]}}


def _found(finds: Callable[[list[Action], Action], bool], actions: list[Action]) -> set[Action]:
    """Return the W that find their context; ``finds`` decides it for one action, and drops freed contexts.

    It receives the I whose contexts are kept; an I is added after its action.
    """
    kept: list[Action] = []
    found: set[Action] = set()
    for action in actions:
        if finds(kept, action):
            found.add(action)
        if action.kind == "I":
            kept.append(action)
    return found


def _own_taken(kept: list[Action], action: Action) -> bool:
    """Return whether the context of a W was kept, and remove it."""
    own = replace(action, kind="I")
    there = action.kind == "W" and own in kept
    if there:
        kept.remove(own)
    return there


def _newest(count: int, kept: list[Action], action: Action) -> bool:
    """Return whether an action finds its context if only the newest ``count`` of each stage are kept."""
    of_stage = [context for context in kept if context.stage == action.stage]
    if action.kind == "I" and len(of_stage) == count:
        kept.remove(of_stage[0])
    return _own_taken(kept, action)


def _no_full_between(kept: list[Action], action: Action) -> bool:
    if action.kind == "B":
        kept[:] = [context for context in kept if context.stage != action.stage]
    return _own_taken(kept, action)


def _by_microbatch(kept: list[Action], action: Action) -> bool:
    found = _own_taken(kept, action)
    if action.kind in {"I", "W"}:
        kept[:] = [context for context in kept if context.mb != action.mb]
    return found


def _alone(kept: list[Action], action: Action) -> bool:
    alone = len(kept) == 1
    return _own_taken(kept, action) and alone


def _taken(place: int, kept: list[Action], action: Action) -> bool:
    """Return whether the oldest or newest context of all stages is of the action's stage, and remove it."""
    return action.kind == "W" and bool(kept) and kept.pop(place).stage == action.stage
