"""Counts: more outputs, arguments, parameters, uses, dimensions and elements than usual, and equal tensors."""

from __future__ import annotations

from gradconform.fixtures.programs import full_all_forwards_first, split_all_forwards_first
from gradconform.judge import gradients

from .cases import of
from .check import Judge, family

_STAGES = (
    "outputs-70", "arguments-70", "uses-70", "dimensions-0-to-6", "parameters-past-2-18", "equal-arguments",
    "equal-parameters", "rows-1537",
)  # fmt: skip


@family(
    "counts.gradients",
    {
        f"{name}-{way}": of(name, program)
        for name in _STAGES
        for way, program in (("full", full_all_forwards_first(2)), ("split", split_all_forwards_first(2)))
    },
    since="1.1",
)
def gradients_of_many() -> Judge:
    """Every output, argument and parameter MUST get its own gradient, in program {program} on {stage}.

    Names past ten sort otherwise than numbers, sets of bits are full at 64, and equal tensors are not the same one.

    Catches: an order by name, a fixed number of slots, a buffer that is too short, or a tensor found by its values.
    """
    return gradients
