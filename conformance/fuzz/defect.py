"""Defects: what failing trials have in common, so that one defect is told once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gradconform.fixtures.random_stages import recipe_of
from gradconform.judge.finding import Finding
from gradconform.report.causes import kind_of_tensor
from gradconform.trial import Trial

_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?|\[.*\]")

#: Likely causes that say that something is not there.
_LOST = re.compile(r"missing|overwritten|it is zero|elements are zero|^only ")

#: What else a likely cause may name.
_NAMED = re.compile(r"counted twice|running sum|swapped|mixed up|transposed|rounded to \w+|divided by|sign is reversed")

#: What a wrong hook count decides: as in the contract, it is a SHOULD.
_SHOULD = frozenset({"hooks"})


@dataclass(frozen=True, slots=True)
class Defect:
    """The smallest trial found that shows one defect, and what it shows."""

    key: str
    trial: Trial
    findings: tuple[Finding, ...]

    @property
    def level(self) -> str:
        """MUST, or SHOULD where nothing but the number of calls of a hook is wrong."""
        return "SHOULD" if self.findings[0].kind in _SHOULD else "MUST"

    def explains(self, key: str, trial: Trial) -> bool:
        """Tell whether another failing trial shows no more than this: the same thing, and all that this one needs."""
        if self.findings[0].kind == "error":
            return key == self.key  # what was raised says enough
        return key == self.key and _features(self.trial) <= _features(trial)

    @property
    def size(self) -> tuple[int, ...]:
        """How much there is to read."""
        return size_of(self.trial)


def key_of(finding: Finding) -> str:
    """Return what a finding says without its names and numbers: two that say the same may be one defect."""
    letter = re.sub(r"[\d!]", "", finding.action)
    where = kind_of_tensor(finding.where)
    if finding.kind in {"mismatch", "missing"} and (finding.kind == "missing" or _LOST.search(finding.cause or "")):
        return f"a gradient is lost: {where}, after {letter}"
    if finding.kind == "mismatch":
        named = _NAMED.search(finding.cause or "")
        return f"a value is wrong: {where}, after {letter}{f', {named[0]}' if named else ''}"
    said = _NUMBER.sub("n", finding.text.partition(": expected")[0].removesuffix("; plain autograd does not"))
    return f"{finding.kind}: {where}, after {letter or 'the end'}, {said}"


def size_of(trial: Trial) -> tuple[int, ...]:
    """Return how much there is to read of a trial, for choosing the smallest of several."""
    recipe = recipe_of(trial.stages[0])
    options = (trial.loss, trial.output_grads != "normal", trial.prior_grads, trial.same_args, bool(trial.watch))
    if recipe is None:
        return (0, 0, 0, len(trial.actions), sum(options), 0)
    parts = len(recipe.inputs) + len(recipe.weights) + len(recipe.outputs)
    return (len(recipe.lines), parts, len(trial.actions), sum(options), len(recipe.text), len(recipe.signature))


def _features(trial: Trial) -> frozenset[str]:
    """Return what is special about a trial."""
    actions = {action.kind for action in trial.actions} & {"overwrite", "freeze", "zero_none", "zero_fill", "drop"}
    options = {"same_args"} if trial.same_args else set()
    return frozenset(actions.union(options, *(case.traits for case in trial.stages)))
