"""What runs of several targets share: plain autograd's observations, and reference64's gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gradconform.materials import Materials
from gradconform.observation import Observation
from gradconform.reference64 import MicrobatchGrads
from gradconform.trial import Trial

#: A trial with all that its values are drawn from, and the factor of its loss.
Key = tuple[Trial, str, str, int, float]


@dataclass(slots=True)
class OracleCache:
    """Keeps what depends on the trial and its place and on no target; its owner decides how long it lives."""

    _observations: dict[tuple[Key, bool], Observation] = field(default_factory=dict)
    _grads: dict[Key, dict[tuple[int, int], MicrobatchGrads]] = field(default_factory=dict)

    def observation(
        self, materials: Materials, loss_scale: float, observe: Callable[[], Observation], *, again: bool = False
    ) -> Observation:
        """Return plain autograd's observation of a trial; ``observe`` is called for one that is new.

        ``again`` asks for a second run, to be compared with the first.
        """
        key = (_key(materials, loss_scale), again)
        if key not in self._observations:
            self._observations[key] = observe()
        return self._observations[key]

    def grads(self, materials: Materials, loss_scale: float) -> dict[tuple[int, int], MicrobatchGrads]:
        """Return the float64 gradients by stage and micro-batch that are known of a trial, to be read and added to."""
        return self._grads.setdefault(_key(materials, loss_scale), {})


def _key(materials: Materials, loss_scale: float) -> Key:
    return materials.trial, str(materials.device), str(materials.dtype), materials.seed, loss_scale
