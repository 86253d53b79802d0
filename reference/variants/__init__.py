"""Right implementations written in ways that differ: nothing in the contract may accuse one of them."""

from __future__ import annotations

from collections.abc import Callable

from . import deferring, functions, main_grad, running, storing, walking

#: The right variants by name.
VARIANTS: dict[str, Callable[[], object]] = {
    **functions.VARIANTS,
    **storing.VARIANTS,
    **walking.VARIANTS,
    **deferring.VARIANTS,
    **running.VARIANTS,
    **main_grad.VARIANTS,
}
