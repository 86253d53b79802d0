"""Skips checks that a device cannot run by its probe; each is ``unsupported`` with the reason."""

from __future__ import annotations

from collections.abc import Callable

from gradconform.contract.plan import Item
from gradconform.devices.probe import Probe
from gradconform.results import Result
from gradconform.trial.trial import Trial

_ENDS = "plain autograd on this device ends the process where a backward raises, so no check lets one raise"
_KEEPS = "on this device `parameter.data = tensor` keeps the old values, so no check replaces the data of parameters"


def left_out(item: Item, probe: Probe | None) -> Result | None:
    """Return the result of an item that cannot be run on the device of ``probe``, or None for one that can."""
    if probe is None:
        return None
    limits: tuple[tuple[bool, Callable[[Trial], bool], str], ...] = (
        (probe.ends_where_a_backward_raises, lambda trial: bool(trial.raising), _ENDS),
        (probe.keeps_replaced_data, _replaces_data, _KEEPS),
    )
    for limited, needs, text in limits:
        if limited and any(map(needs, item.check.trials)):
            return item.check.result(item.device, item.dtype, status="unsupported", kind="environment", message=text)
    return None


def _replaces_data(trial: Trial) -> bool:
    return any(action.kind == "replace" for action in trial.actions)
