"""Which piece of a user's stage a failure needs: the smallest module inside it that shows the same by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from gradconform.contract.check import Check
from gradconform.contract.on_stage import is_named
from gradconform.finding_text import alike
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.finding import Finding
from gradconform.named_stages.pieces import pieces_of
from gradconform.trial.trial import Trial

#: So many pieces are tried for one failure; of a model of a thousand modules the way down is asked, not all of them.
_MOST = 60

#: Returns what a trial beside those of a check shows; None where it cannot be told.
Tried = Callable[[Check, Trial], list[Finding] | None]


def worst_first(findings: Sequence[Finding]) -> list[Finding]:
    """Return findings in the order of their actions, those of one action by how far they are beyond their bounds.

    What is no matter of numbers, such as a gradient that is missing, comes before what is.
    """
    actions = list(dict.fromkeys(finding.action for finding in findings))
    far = {id(one): math.inf if one.headroom is None else one.headroom for one in findings}
    return sorted(findings, key=lambda one: (actions.index(one.action), -far[id(one)]))


class Pieces:
    """The smallest pieces that failures of a run need.

    From the whole down, the first module that shows a finding of the same kind is gone into, until none inside it does.
    It is looked for once for findings that are alike on a stage.
    """

    def __init__(self, tried: Tried) -> None:
        """Look for nothing yet."""
        self._tried = tried
        self._known: dict[tuple[str, ...], str] = {}

    def told(self, check: Check, trial: Trial, findings: list[Finding]) -> list[Finding]:
        """Return the findings of a check, the worst of each action first, with the piece that they need.

        They are as they are where that is the whole stage.
        """
        if not is_named(check) or not findings or trial.chain:
            return findings
        return [self._with_piece(check, trial, finding) for finding in worst_first(findings)]

    def _with_piece(self, check: Check, trial: Trial, finding: Finding) -> Finding:
        case, key = trial.stages[0], alike(finding.to_dict())
        known = (case.name, *key)
        if known not in self._known:
            self._known[known] = self._smallest(check, trial, case, key)
        path = self._known[known]
        return replace(finding, needs={**(finding.needs or {}), "piece": path}) if path else finding

    def _smallest(self, check: Check, trial: Trial, case: StageCase, key: tuple[str, ...]) -> str:
        """Return the name of the smallest module that fails alike, none where only the whole does."""
        path, left = "", _MOST
        while left > 0:
            for name, piece in pieces_of(case, path):
                left -= 1
                if left < 0 or self._fails_alike(check, trial, piece, key):
                    path = name if left >= 0 else path
                    break
            else:
                return path
        return path

    def _fails_alike(self, check: Check, trial: Trial, piece: StageCase, key: tuple[str, ...]) -> bool:
        found = self._tried(check, replace(trial, stages=(piece,) * len(trial.stages), tied=())) or []
        return any(alike(one.to_dict())[:3] == key[:3] for one in found)
