"""Judges repeats: the same trial, run again on a new stage, gives the same bits."""

from __future__ import annotations

from collections.abc import Iterator

from gradconform.adapter import UnsupportedError
from gradconform.evidence import Evidence
from gradconform.judge.finding import Finding
from gradconform.judge.refusal import same
from gradconform.judge.state import raised
from gradconform.observation import Observation


def bit_equal(evidence: Evidence) -> Iterator[Finding]:
    """Yield gradients that differ between repeats; raise ``UnsupportedError`` where plain autograd's do too."""
    if evidence.oracle_again is not None and list(_differences(evidence.oracle, evidence.oracle_again)):
        msg = "plain autograd does not repeat itself bit by bit on this device"
        raise UnsupportedError(msg)
    for count, observation in enumerate(evidence.observations):
        yield from raised(observation)
        for where, action in _differences(evidence.observation, observation):
            text = f"repeat {count} of {len(evidence.observations)} differs from the first in its bits"
            yield Finding("not_repeatable", where, action, text)
            return


def same_bits(evidence: Evidence) -> bool | None:
    """Tell whether all repeats of a trial gave the same bits; None where it was run once."""
    if len(evidence.observations) == 1:
        return None
    return not any(list(_differences(evidence.observation, other)) for other in evidence.observations[1:])


def _differences(one: Observation, other: Observation) -> Iterator[tuple[str, str]]:
    for first, second in zip(one.steps, other.steps, strict=False):
        for slot, (a, b) in enumerate(zip(first.input_grads or (), second.input_grads or (), strict=False)):
            if not same(a, b):
                yield f"input {slot}", str(first.action)
        for name, grad in first.param_grads.items():
            if not same(grad, second.param_grads.get(name)):
                yield name, str(first.action)
