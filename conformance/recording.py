"""Runs of a program with a record of what they execute on the device, where such a record is kept."""

from __future__ import annotations

from gradconform.adapter import Adapter
from gradconform.dispatched import Record, is_recorded
from gradconform.driver import drive
from gradconform.materials import Materials
from gradconform.observation import Observation


def drive_recorded(adapter: Adapter, materials: Materials, *, loss_scale: float = 1.0) -> Observation:
    """Drive as :func:`gradconform.driver.drive` does; where runs of the trial are recorded, with what was executed."""
    if not is_recorded(materials):
        return drive(adapter, materials, loss_scale=loss_scale)
    record = Record(materials.device)
    found = drive(adapter, materials, loss_scale=loss_scale, record=record)
    found.executed = record.executed()
    return found
