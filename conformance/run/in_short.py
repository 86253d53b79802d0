"""Runs of everything in profile quick: they judge only what says something new, so that a slow device finishes."""

from __future__ import annotations

from collections.abc import Sequence

from gradconform.contract.extra_ids import ALL

from .options import RunOptions

#: The target of a run that judges a device: it is right, so every failure is the device's.
RIGHT = "reference-split"


def operations_in_short(profile: str, operations: Sequence[str]) -> bool:
    """Return whether a run of ``profile`` on the named operations tries few samples of each."""
    return profile == "quick" and ALL in operations


def device_as_a_whole(options: RunOptions) -> bool:
    """Return whether a run is ``gradconform device`` without a choice of parts: all operations by all oracles.

    The target is right, so it runs the kernels of plain autograd, and other devices than the CPU are compared with it.
    """
    return options.target == RIGHT and ALL in options.oracle and ALL in options.operation


def device_in_short(options: RunOptions) -> bool:
    """Return whether a run judges a device as a whole in profile quick: without a split backward."""
    return device_as_a_whole(options) and operations_in_short(options.profile, options.operation)
