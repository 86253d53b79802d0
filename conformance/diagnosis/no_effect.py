"""Finds why actions give nothing: a property that all of them share, and no other action has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.trial.program import Action, forward_of

from .cause import Cause, Mistake
from .parts import added, run_of, same, step_before

#: How many equally good reasons are reported.
_MOST_CAUSES = 2

#: From this many on, earlier actions are reported as a count; fewer are listed.
_COUNTED = 8

#: Returns whether an action has the property of a reason.
Mark = Callable[[Action, int], bool]


def reason(evidence: Evidence, step: Step) -> Cause | None:
    """Return the property that separates the B and W that add nothing from those that add something."""
    acted = _acted(evidence, step)
    inactive = {seen.position for seen in acted if not added(evidence, seen)}
    if step.position not in inactive or len(inactive) == len(acted):
        return None
    return _fitting(_marks(evidence, step), acted, inactive)


def circumstance(evidence: Evidence, step: Step) -> Cause | None:
    """Return a possible reason why no B or W of a run adds anything: a property that all of them have."""
    acted = _acted(evidence, step)
    inactive = {seen.position for seen in acted if not added(evidence, seen)}
    fixed = not any(grad is not None for grad in evidence.reference(step.action.stage, step.action.mb).inputs)
    if step.position not in inactive or len(inactive) != len(acted) or fixed:  # that no input needs one is special too
        return None
    return _fitting([*_modes(evidence), *_losses(evidence)], acted, inactive)


def _fitting(marks: list[tuple[Cause, Mark]], acted: list[Step], inactive: set[int]) -> Cause | None:
    fitting = (
        cause
        for cause, mark in marks
        if {seen.position for seen in acted if mark(seen.action, seen.position)} == inactive
    )
    causes = tuple(islice(fitting, _MOST_CAUSES))
    return Cause(Mistake.EITHER, causes=causes) if len(causes) > 1 else next(iter(causes), None)


def _acted(evidence: Evidence, step: Step) -> list[Step]:
    """Return the steps of the same run that should add something."""
    if step.action.kind not in {"B", "W"} or evidence.capabilities.weight_when == "finish":
        return []
    return [
        seen
        for seen in run_of(evidence, step).steps
        if seen.action.kind in {"B", "W"} and not seen.action.misuse and not seen.raised
    ]


def _marks(evidence: Evidence, step: Step) -> list[tuple[Cause, Mark]]:
    """Return possible properties of a program's actions, the most informative first."""
    actions, lane = evidence.trial.actions, step.action.stage
    marks: list[tuple[Cause, Mark]] = [
        (Cause(Mistake.NUMBER_USED_BEFORE), lambda action, position: action in actions[:position])
    ]
    marks += [
        (Cause(Mistake.SESSION_OPENED, action=str(actions[opened])), _across(actions, opened))
        for opened in _openings(actions, lane)
    ]
    marks += _losses(evidence)
    before = _earlier(actions, step.action, step.position)
    if step.action.kind == "B" and before >= _COUNTED:
        cause = Cause(Mistake.PAST_COUNT, counts=(before,))
        marks.append((cause, lambda action, position: _earlier(actions, action, position) >= before))
    return marks


def _losses(evidence: Evidence) -> list[tuple[Cause, Mark]]:
    """Return the possible reasons why stored data of actions was lost."""
    actions = evidence.trial.actions
    forgotten = [
        (position, action)
        for position, action in enumerate(actions)
        if action.kind == "I" and not action.misuse and not _has_weight_pass(actions, action, position)
    ]
    return [(Cause(Mistake.COLLECTED), _collected(actions))] + [
        (Cause(Mistake.FORGOTTEN, action=str(action)), lambda _, position, since=since: position > since)
        for since, action in forgotten
    ]


def _earlier(actions: tuple[Action, ...], action: Action, position: int) -> int:
    """Return how many actions of the same kind and stage come before a position."""
    return sum((one.kind, one.stage) == (action.kind, action.stage) for one in actions[:position])


def _openings(actions: tuple[Action, ...], lane: int) -> Iterator[int]:
    """Yield the positions at which the sessions of other stages are opened: their first actions."""
    known: set[int] = set()
    for position, action in enumerate(actions):
        if action.stage not in known and action.stage != lane and position:
            yield position
        known.add(action.stage)


def _across(actions: tuple[Action, ...], place: int) -> Mark:
    """Return the property that an action's forward is before a position of the program and its backward after it."""
    return lambda action, position: forward_of(actions, action.stage, action.mb, position) < place < position


def _collected(actions: tuple[Action, ...]) -> Mark:
    places = [position for position, action in enumerate(actions) if action.kind == "collect"]
    return lambda action, position: any(
        forward_of(actions, action.stage, action.mb, position) < place < position for place in places
    )


def _has_weight_pass(actions: tuple[Action, ...], begun: Action, since: int) -> bool:
    """Return whether the W of an I comes after it."""
    return any(
        action.kind == "W" and (action.stage, action.mb) == (begun.stage, begun.mb) for action in actions[since:]
    )


def _modes(evidence: Evidence) -> list[tuple[Cause, Mark]]:
    """Return the unusual modes in which the actions of a trial are called."""
    kinds = {"no_grad": Mistake.CALLED_WITHOUT_GRAD} | dict.fromkeys(
        ("thread", "forward_thread"), Mistake.CALLED_FROM_ANOTHER_THREAD
    )
    return [(Cause(kind), lambda *_: True) for mode, kind in kinds.items() if mode in evidence.trial.modes]


#: From this many on, parameters and arguments beyond a number are examined separately.
MANY = 16


def of_some(evidence: Evidence, name: str, step: Step) -> Cause | None:
    """Return the shared property of the parameters, ``name`` among them, that alone got nothing or lost all."""
    frozen = _frozen(evidence, name, step)
    if frozen is not None or step.action.kind not in {"B", "W"}:
        return frozen
    due, unchanged = due_and_unchanged(evidence, step)
    if name not in unchanged or unchanged == due:
        return None
    reference = evidence.reference(step.action.stage, step.action.mb).params
    if unchanged == {one for one in due if (grad := reference[one]) is not None and not grad.numel()}:
        return Cause(Mistake.NO_ELEMENTS)
    names = list(reference)
    thawed = {names[number] for number in evidence.trial.standing(step.action.stage, step.position).thawed}
    if unchanged == thawed & due:
        return Cause(Mistake.THAWED)
    first = min(map(names.index, unchanged))
    if first >= MANY and unchanged == due & set(names[first:]):
        return Cause(Mistake.PARAMETERS_PAST_COUNT, counts=(first,))
    return None


def due_and_unchanged(evidence: Evidence, step: Step) -> tuple[set[str], set[str]]:
    """Return the parameters to which a B or W should add, and those of them that got nothing."""
    reference = evidence.reference(step.action.stage, step.action.mb, step.position).params
    due = {name for name, grad in reference.items() if grad is not None}
    due -= _given_by_input_pass(evidence, step)
    before = step_before(evidence, step)
    held, now = {} if before is None else before.param_grads, step.param_grads
    return due, {name for name in due if now.get(name) is None or same(held.get(name), now.get(name))}


def _given_by_input_pass(evidence: Evidence, step: Step) -> set[str]:
    """Return the parameters that already got their gradients from the I of a W, if the target claims this."""
    if step.action.kind != "W" or not evidence.capabilities.input_pass_touches_params:
        return set()
    own = [
        seen
        for seen in run_of(evidence, step).steps
        if seen.position < step.position
        and (seen.action.kind, seen.action.stage, seen.action.mb) == ("I", step.action.stage, step.action.mb)
    ]
    if not own:
        return set()
    before = step_before(evidence, own[-1])
    held = {} if before is None else before.param_grads
    return {name for name, grad in own[-1].param_grads.items() if grad is not None and not same(held.get(name), grad)}


def _frozen(evidence: Evidence, name: str, step: Step) -> Cause | None:
    """Return the word of the program that froze exactly the parameters that lost their gradients."""
    before = step_before(evidence, step)
    held = {} if before is None else {one for one, grad in before.param_grads.items() if grad is not None}
    lost = {one for one in held if step.param_grads.get(one) is None}
    names = list(evidence.reference(step.action.stage, 0).params)
    frozen = {names[number] for number in evidence.trial.standing(step.action.stage, step.position + 1).frozen}
    return Cause(Mistake.FROZEN) if name in lost and lost == frozen.intersection(held) else None
