"""The faults: deliberately wrong implementations with one mistake each, made from gradconform.reference.split."""

from . import (  # noqa: F401 (each registers its faults)
    accumulation,
    afterwards,
    aliasing,
    at_once,
    by_hand,
    caller,
    calling,
    counting,
    differing,
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
    nones,
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
