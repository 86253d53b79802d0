"""Measures the trials of a check: error/bound ratios, and the device's operations and memory."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Executed
from gradconform.drive.reference64 import References
from gradconform.judge.finding import Finding
from gradconform.judge.state import same_bits
from gradconform.results import finite
from gradconform.text.counts import count

#: The number of operations off the device that a message names.
_NAMED = 5


@dataclass(slots=True)
class Measurements:
    """The measurements of one check.

    ``own`` and ``plain`` are the operations of the implementation and of plain autograd on the device. ``heaviest`` is
    the trial of ``memory`` if the implementation used more than plain autograd.
    """

    error_ratios: list[float] = field(default_factory=list)
    repeats: list[bool] = field(default_factory=list)
    own: Executed = field(default_factory=Executed)
    plain: Executed = field(default_factory=Executed)
    memory: dict[str, int] | None = None
    heaviest: References | None = None
    spread: float = 0.0
    imprecise: dict[str, float] = field(default_factory=dict)

    def add(self, evidence: Evidence, error_ratios: list[float]) -> None:
        """Add a trial, and the error/bound ratios of its judging."""
        self.error_ratios += error_ratios
        same = same_bits(evidence.observations)
        self.repeats += [] if same is None else [same]
        self.spread = max(self.spread, *_relative(evidence), 0.0)
        for operation, eps in evidence.imprecise.items():
            self.imprecise[operation] = max(eps, self.imprecise.get(operation, 0.0))
        own, plain = evidence.observation, evidence.oracle
        if own.executed is not None:
            self.own += own.executed
            self.plain += plain.executed or own.executed  # not logged if all of the implementation ran on the device
        if own.peak is not None and plain.peak is not None:
            self._weigh(own.peak, plain.peak, evidence.references)

    def _weigh(self, own: int, plain: int, references: References) -> None:
        """Store the memory of the trial with the largest excess over plain autograd."""
        before = self.memory
        if plain > 0 and (before is None or own * before["plain_autograd"] > before["peak"] * plain):
            self.memory = {"peak": own, "plain_autograd": plain, "undeferred": plain}
            self.heaviest = references if own > plain else None

    def compare_undeferred(self, peak: int | None) -> None:
        """Store the memory of plain autograd with B in place of I and W, in the heaviest trial."""
        if peak and self.memory is not None:
            self.memory["undeferred"] = peak

    def values(self) -> dict[str, Any]:
        """Return the measurements as fields of a result."""
        reported = bool(self.error_ratios)
        share = self.own.off_device_share
        return {
            "error_ratio": finite(max(self.error_ratios)) if reported else None,
            "bit_equal": not any(self.error_ratios) if reported and not self.spread else None,
            "repeats_bit_equal": all(self.repeats) if self.repeats else None,
            "off_device_share": share,
            "memory": self.memory,
            "oracle_spread": self.spread or None,
            "imprecise": self.imprecise or None,
        }

    def below(self, percent: float) -> tuple[str, Finding] | None:
        """Return who runs less than ``percent`` of its operations on the device, and the finding with the share.

        If plain autograd also does, it is the ``device``; else the ``implementation``.
        """
        on_device = _percent_on_device(self.own)
        if on_device is None or on_device >= percent:
            return None
        there = _percent_on_device(self.plain)
        plain_share = "plain autograd: none recorded" if there is None else f"plain autograd: {there:.3g} %"
        names = ", ".join(f"{name} {count(n, 'time')}" for name, n in Counter(self.own.off_device).most_common(_NAMED))
        got = f"got {on_device:.3g} % ({plain_share})"
        text = f"expected at least {percent:g} % of operations on the device, {got}; off the device: {names}"
        who = "device" if there is None or there < percent else "implementation"
        return who, Finding("device", "the operations", "", text)


def _percent_on_device(executed: Executed) -> float | None:
    share = executed.off_device_share
    return None if share is None else 100.0 * (1.0 - share)


def _relative(evidence: Evidence) -> list[float]:
    """Return the differences of two runs of plain autograd, relative to each tensor's largest element."""
    if not evidence.spread:
        return []
    sizes: dict[int, float] = {}
    for step in evidence.oracle.steps:
        for tensor in (*(step.input_grads or ()), *step.param_grads.values()):
            if isinstance(tensor, Tensor) and id(tensor) in evidence.spread:
                sizes[id(tensor)] = float(tensor.to_dense().abs().max())
    return [evidence.spread[key] / size for key, size in sizes.items() if size > 0.0]
