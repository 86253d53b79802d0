"""Deliberately wrong implementations, one idea each, on top of gradconform.reference.split."""

from . import (  # noqa: F401 (each registers its faults)
    accumulation,
    aliasing,
    by_hand,
    dropped,
    errors,
    hooks,
    lifetime,
    means,
    numerics,
    orders,
    pairing,
    recomputed,
    sharing,
    state,
)
from .registry import FAULTS, Fault

__all__ = ["FAULTS", "Fault"]
