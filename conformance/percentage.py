"""Percentages that a user names."""

from __future__ import annotations

from gradconform.devices import SelectionError

_WHOLE = 100.0


def percentage_named(given: float | str) -> float:
    """Return the percentage; raise :class:`~gradconform.devices.SelectionError` for what is none from 0 to 100."""
    try:
        found = float(given)
    except ValueError:
        found = -1.0
    if not 0.0 <= found <= _WHOLE:
        msg = f"require_device_execution={given!r} is no percentage; expected a number from 0 to 100, such as 95"
        raise SelectionError(msg)
    return found
