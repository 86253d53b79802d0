"""Deliberately wrong implementations, one idea each, on top of gradconform.reference.split."""

from . import (
    accumulation,
    addresses,
    aliasing,
    by_hand,
    dropped,
    errors,
    hooks,
    lifetime,
    numerics,
    pairing,
    scheduling,
    sharing,
    state,
)
from .registry import FAULTS, Fault

__all__ = [
    "FAULTS",
    "Fault",
    "accumulation",
    "addresses",
    "aliasing",
    "by_hand",
    "dropped",
    "errors",
    "hooks",
    "lifetime",
    "numerics",
    "pairing",
    "scheduling",
    "sharing",
    "state",
]
