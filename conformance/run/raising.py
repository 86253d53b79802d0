"""What is not asked of a device on which an error raised in a backward ends the process."""

from __future__ import annotations

from gradconform.contract.plan import Item
from gradconform.devices.probe import Probe
from gradconform.results import Result

_TEXT = "plain autograd on this device ends the process where a backward raises, so no check lets one raise"


def left_out(item: Item, probe: Probe | None) -> Result | None:
    """Return the result of an item that cannot be run on the device of ``probe``, or None for one that can."""
    if probe is None or not probe.ends_where_a_backward_raises:
        return None
    if not any(trial.raising for trial in item.check.trials):
        return None
    return item.check.result(item.device, item.dtype, status="unsupported", kind="environment", message=_TEXT)
