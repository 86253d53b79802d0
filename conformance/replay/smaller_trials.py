"""Parts of a failing trial that may show its failure alone: one stage, and its passes without other features.

The full script of a trial has the parts of the kit's driver that its features need. If an implementation is wrong
without a feature too, a script of the part is shorter and shows the same mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gradconform.contract.check import Check
from gradconform.fixtures.grad_tuples import WRONG_PATTERNS
from gradconform.judge import all_requirements, gradients
from gradconform.judge.chain import chained
from gradconform.judge.errors import right_afterwards
from gradconform.judge.hooks import given_the_gradient
from gradconform.judge.refusal import right_or_refused
from gradconform.trial.program import Action, ProgramError, shortened, write
from gradconform.trial.trial import Trial

from .judges import judge_of

#: The judges of gradients: a wrong gradient in a part of the trial fails the whole one.
_OF_GRADIENTS = (all_requirements, gradients, chained, right_afterwards, given_the_gradient, right_or_refused)


@dataclass(frozen=True, slots=True)
class Part:
    """A check of one smaller trial, and a sentence that says which part of the whole one it is."""

    check: Check
    sentence: str


def parts(check: Check) -> Iterator[Part]:
    """Yield the parts of a check's trial, one stage at a time; none if the check judges more than gradients."""
    if judge_of(check)[0] not in _OF_GRADIENTS:
        return
    trial = check.trials[0]
    for lane in range(len(trial.stages)):
        smaller = _alone(trial, lane)
        if smaller is not None and smaller != trial and smaller.needs <= trial.needs:
            stage = f"stage {lane} alone, " if len(trial.stages) > 1 else ""
            sentence = f"A part of this fails too and runs here: {stage}{shortened(smaller.program)}."
            yield Part(replace(check, trials=(smaller,), judge=gradients, pooled=None), sentence)


def _alone(trial: Trial, lane: int) -> Trial | None:
    """Return one stage with its passes and no other features; None if no gradient is left."""
    actions = _renumbered(_complete([action for action in trial.actions if action.stage == lane]))
    pattern = "normal" if {*trial.output_grads.split("|")} & (WRONG_PATTERNS.keys() | {"nan", "inf"}) else ""
    if not {action.kind for action in actions} & {"B", "I"}:
        return None
    try:
        return Trial(
            stages=(trial.stages[lane],),
            program=write(actions),
            loss=trial.loss_at(lane),
            output_grads=pattern or trial.output_grads,
            modes=trial.modes & {"eval"},
        )
    except ProgramError:
        return None


def _complete(actions: list[Action]) -> list[Action]:
    """Return the forwards and backwards that belong together, each once: without misuses, and what they leave open."""
    found: list[Action] = []
    for action in actions:
        if action.misuse or action.kind not in {"F", "B", "I", "W", "finish"}:
            continue
        if action.kind == "F":  # a forward that runs again replaces the one whose backward raised
            found = [one for one in found if (one.kind, one.mb) != ("F", action.mb) or _used(found, action.mb)]
        if action.kind != "W" or any((one.kind, one.mb) == ("I", action.mb) for one in found):
            found.append(action)
    return found


def _used(actions: list[Action], mb: int) -> bool:
    """Return whether a micro-batch has a backward."""
    return any(one.kind in {"B", "I"} and one.mb == mb for one in actions)


def _renumbered(actions: list[Action]) -> list[Action]:
    """Return the actions of stage 0, with micro-batches numbered without gaps."""
    numbers = {mb: number for number, mb in enumerate(sorted({one.mb for one in actions if one.kind == "F"}))}
    return [
        Action(one.kind, 0 if one.kind == "finish" else numbers[one.mb])
        for one in actions
        if one.kind == "finish" or one.mb in numbers
    ]
