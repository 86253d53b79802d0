"""How a process ended, in words."""

from __future__ import annotations

import signal


def exit_in_words(code: int | None) -> str:
    """Return ``exit code 3``, or the name of the signal for the negative code that :mod:`subprocess` gives it."""
    if code is None or code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal
        return f"signal {-code}"
