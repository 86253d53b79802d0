"""The right variants: right implementations written in other ways, which no check may fail."""

from __future__ import annotations

from collections.abc import Callable

from . import deferring, edges, functions, main_grad, running, storing, walking

#: The right variants by name.
VARIANTS: dict[str, Callable[[], object]] = {
    **functions.VARIANTS,
    **storing.VARIANTS,
    **walking.VARIANTS,
    **deferring.VARIANTS,
    **running.VARIANTS,
    **main_grad.VARIANTS,
    **edges.VARIANTS,
}
