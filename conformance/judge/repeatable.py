"""Judges repeats: the same trial, run again on a new stage, gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator

from gradconform.adapter import UnsupportedError
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Observation
from gradconform.results import Sort

from .finding import Finding
from .refusal import same
from .state import raised


def bit_equal(evidence: Evidence) -> Iterator[Finding]:
    """Yield gradients that differ between repeats; raise ``UnsupportedError`` where plain autograd's do too."""
    if evidence.oracle_again is not None and list(_differences(evidence.oracle, evidence.oracle_again)):
        msg = "plain autograd does not repeat itself bit by bit on this device"
        raise UnsupportedError(msg)
    for count, observation in enumerate(evidence.observations):
        yield from raised(observation)
        for sort, where, action in _differences(evidence.observation, observation):
            text = f"repeat {count} of {len(evidence.observations)} differs from the first in its bits"
            yield Finding("not_repeatable", where, action, text, sort=sort)
            return


def same_bits(observations: tuple[Observation, ...]) -> bool | None:
    """Tell whether all repeats of a trial gave the same bits; None where it was run once."""
    if len(observations) == 1:
        return None
    return not any(list(_differences(observations[0], other)) for other in observations[1:])


def _differences(one: Observation, other: Observation) -> Iterator[tuple[Sort, str, str]]:
    for first, second in zip(one.steps, other.steps, strict=False):
        for slot, (a, b) in enumerate(zip(first.input_grads or (), second.input_grads or (), strict=False)):
            if not same(a, b):
                yield "input gradient", f"input {slot}", str(first.action)
        for name, grad in first.param_grads.items():
            if not same(grad, second.param_grads.get(name)):
                yield "parameter gradient", name, str(first.action)
