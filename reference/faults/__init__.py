"""The faults: deliberately wrong implementations with one mistake each, made from gradconform.reference.split."""

from . import (  # noqa: F401 (each registers its faults)
    accumulation,
    afterwards,
    aliasing,
    by_hand,
    calling,
    dropped,
    edges,
    errors,
    graphs,
    hooks,
    layouts,
    lifetime,
    main_grad,
    means,
    modes,
    numerics,
    orders,
    pairing,
    raising,
    received,
    recomputed,
    sharing,
    sizes,
    state,
    stepping,
    together,
    walks,
)
from .registry import FAULTS, Fault

__all__ = ["FAULTS", "Fault"]
