"""Reduces a failing trial: fewer micro-batches, actions and options, as long as it fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from gradconform.fuzz.defect import Defect, key_of
from gradconform.judge.finding import Finding
from gradconform.program import Action, needs, write
from gradconform.trial import Trial

Judge = Callable[[Trial], list[Finding]]

_DEFAULTS: tuple[dict[str, Any], ...] = (
    {"prior_grads": False},
    {"same_args": False},
    {"watch": frozenset()},
    {"loss": False},
    {"output_grads": "normal"},
)

#: How many trials a reduction takes at most.
_MOST = 100


def reduced(defect: Defect, judge: Judge) -> Defect:
    """Return the defect with the smallest trial that can be reached by leaving things out."""
    tried = 0
    shrinking = True
    while shrinking and tried < _MOST:
        shrinking = False
        for trial in _smaller(defect.trial):
            tried += 1
            findings = judge(trial)
            if findings and key_of(findings[0]) == defect.key:
                defect = Defect(defect.key, trial, tuple(findings))
                shrinking = True
                break
    return defect


def _smaller(trial: Trial) -> Iterator[Trial]:
    """Yield trials with one thing less that ask for nothing that this one does not ask for."""
    for program in _shorter(trial.actions):
        yield replace(trial, program=write(program))
    for default in _DEFAULTS:
        other = replace(trial, **default)
        if other != trial and other.needs - {"mid_stage"} <= trial.needs:
            yield other


def _shorter(actions: tuple[Action, ...]) -> Iterator[tuple[Action, ...]]:
    allowed = needs(actions)
    for mb in sorted({action.mb for action in actions if action.kind == "F"}, reverse=True):
        left = tuple(a for a in actions if a.mb != mb or a.kind not in {"F", "B", "I", "W", "drop", "overwrite"})
        if any(action.kind == "F" for action in left) and needs(left) <= allowed:
            yield _renumbered(left)
    for place, action in enumerate(actions):
        if action.kind not in {"F", "B", "I", "W", "freeze", "unfreeze"}:
            yield _without(actions, place)
        elif action.kind == "freeze":
            yield tuple(a for a in actions if (a.kind, a.mb) not in {("freeze", action.mb), ("unfreeze", action.mb)})


def _without(actions: tuple[Action, ...], place: int) -> tuple[Action, ...]:
    return (*actions[:place], *actions[place + 1 :])


def _renumbered(actions: tuple[Action, ...]) -> tuple[Action, ...]:
    """Return the actions with their micro-batches numbered from 0 again, in the order of their forwards."""
    order = [action.mb for action in actions if action.kind == "F"]
    of_stage = {"freeze", "unfreeze"}
    return tuple(a if a.kind in of_stage or a.mb not in order else replace(a, mb=order.index(a.mb)) for a in actions)
