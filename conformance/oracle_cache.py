"""What runs of several targets share: plain autograd's observations, and reference64's gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gradconform.materials import Materials
from gradconform.reference64 import MicrobatchGrads
from gradconform.trial import Trial

#: A trial with all that its values are drawn from, and the factor of its loss.
Key = tuple[Trial, str, str, int, float]


@dataclass(slots=True)
class OracleCache:
    """Keeps what depends on the trial and its place and on no target; its owner decides how long it lives."""

    _found: dict[tuple[Key, str], Any] = field(default_factory=dict)
    _grads: dict[tuple[Key, bool], dict[tuple[int, int], MicrobatchGrads]] = field(default_factory=dict)

    def of(self, materials: Materials, loss_scale: float, what: str, make: Callable[[], Any]) -> Any:
        """Return what is known by the name ``what`` of plain autograd on a trial; ``make`` makes it the first time."""
        key = (_key(materials, loss_scale), what)
        if key not in self._found:
            self._found[key] = make()
        return self._found[key]

    def grads(
        self, materials: Materials, loss_scale: float, *, wide: bool = True
    ) -> dict[tuple[int, int], MicrobatchGrads]:
        """Return the gradients by stage and micro-batch that are known of a trial, to be read and added to.

        They are those of float64 where ``wide``, else those of the trial's own dtype.
        """
        return self._grads.setdefault((_key(materials, loss_scale), wide), {})


def _key(materials: Materials, loss_scale: float) -> Key:
    return materials.trial, str(materials.device), str(materials.dtype), materials.seed, loss_scale
