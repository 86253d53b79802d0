"""Explains the failures of a run on few of them; failures that are alike inherit what explains all examined ones.

Failures are alike if their findings are, and if their programs change the same things between the backwards. The first
two of a group are examined, and then every second power: 4, 8, 16 ... The mistakes that explained most failures before
are tried first, and if one of them explains everything, no others are tried. A mistake that selects parameters is tried
on every member, because alike findings may be of other parameters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradconform.contract.check import Check
from gradconform.diagnosis.cause import Cause
from gradconform.diagnosis.repeated_mistakes import SELECTING
from gradconform.text.findings import alike
from gradconform.trial.program import CHANGES, CLEARS, OF_ONE

from .single_mistakes import JudgedTrial, SingleMistakes

#: Every mistake is tried on this many failures of a run before the likely ones are known.
_ON_FIRST = 3

#: The first members of a group that are examined, and the failures without any explanation before fewer are examined.
_FIRST, _BARREN = 2, 4

#: Actions after which a mistake may show in another way, or not at all.
_BETWEEN = CHANGES | CLEARS | OF_ONE

#: How findings show themselves, without their causes: kind, sort and action.
_Looks = frozenset[tuple[str, ...]]


@dataclass(slots=True)
class _Group:
    """Failures that are alike: how many were seen, and what explains those that were examined.

    ``common`` are the mistakes that leave nothing in any examined one; ``first`` is the id of the first examined check.
    ``helpful`` counts the examined checks in which a mistake explains something.
    """

    seen: int = 0
    first: str = ""
    common: dict[Cause, None] | None = None
    helpful: Counter[Cause] = field(default_factory=Counter)

    def add(self, check: Check, found: Mapping[Cause, Sequence[int]]) -> None:
        """Add an examined check."""
        whole = dict.fromkeys(cause for cause, left in found.items() if not left)
        self.common = whole if self.common is None else {cause: None for cause in self.common if cause in whole}
        self.first = self.first or check.id
        self.helpful.update(found.keys())  # of a mapping, it would add the values


class AlikeFailures:
    """The failures of one target, device and dtype, in groups of those that are alike."""

    def __init__(self, mistakes: SingleMistakes) -> None:
        """Store what examines a failure."""
        self._mistakes = mistakes
        self._groups: dict[tuple[frozenset[tuple[str, ...]], frozenset[str]], _Group] = {}
        self._whole: dict[_Looks, Counter[Cause]] = {}
        self._barren: Counter[_Looks] = Counter()
        self._examined = 0

    def explained(self, check: Check, failing: Sequence[JudgedTrial]) -> tuple[dict[str, Any], ...]:
        """Return the mistakes that explain findings of a check, as JSON values: ``mistake`` and what is ``left``.

        ``left`` has the places of the findings that a mistake does not explain. A mistake that was not tried on this
        check has ``verified_on``, the id of a check that fails alike.
        """
        if not failing:
            return ()
        kinds = frozenset(alike(finding.to_dict()) for one in failing for finding in one.findings)
        looks = frozenset(kind[:3] for kind in kinds)
        group = self._groups.setdefault((kinds, _changes(failing)), _Group())
        group.seen += 1
        if self._is_due(group, looks):
            found = self._examine(check, failing, looks)
            group.add(check, found)
        elif group.common and not any(cause.kind in SELECTING for cause in group.common):
            return tuple({**_entry(cause, []), "verified_on": group.first} for cause in group.common)
        else:  # members differ, or their wrong parameters may, so none of them inherits
            helpful = [*group.common] if group.common else [cause for cause, _ in group.helpful.most_common(1)]
            found = self._mistakes.explained(check, failing, helpful, only=True) if helpful else {}
        return tuple(_entry(cause, left) for cause, left in found.items())

    def _is_due(self, group: _Group, looks: _Looks) -> bool:
        """Return whether a new member of a group is examined; seldom if nothing explains failures of these looks."""
        if self._barren[looks] > _BARREN and looks not in self._whole:
            self._barren[looks] += 1
            return _is_power(self._barren[looks])
        return group.seen <= _FIRST or _is_power(group.seen)

    def _examine(self, check: Check, failing: Sequence[JudgedTrial], looks: _Looks) -> dict[Cause, list[int]]:
        found = self._mistakes.explained(check, failing, self._likely(looks))
        self._examined += 1
        if whole := [cause for cause, left in found.items() if not left]:
            self._whole.setdefault(looks, Counter()).update(whole)
        if not found:
            self._barren[looks] += 1
        return found

    def _likely(self, looks: _Looks) -> list[Cause]:
        """Return the mistakes that explained most failures of these looks, or of any; none at the beginning."""
        if self._examined < _ON_FIRST:
            return []
        known = self._whole.get(looks) or sum(self._whole.values(), Counter())
        most = max(known.values(), default=0)
        return [cause for cause, times in known.items() if times == most]


def _entry(cause: Cause, left: Sequence[int]) -> dict[str, Any]:
    return {"mistake": cause.to_dict(), "left": [*left]}


def _is_power(number: int) -> bool:
    """Return whether a number is a power of two."""
    return number & (number - 1) == 0


def _changes(failing: Sequence[JudgedTrial]) -> frozenset[str]:
    """Return what the programs change between backwards, and which actions in them are misuses."""
    actions = [action for one in failing for action in one.evidence.trial.actions]
    misused = {f"{action.kind}!" for action in actions if action.misuse}
    return frozenset(misused | ({action.kind for action in actions} & _BETWEEN))
