"""Wrong runtimes of training steps, each with one thing done wrong that the plain runtime does right.

A target names one by its name with underscores: ``gradconform.reference.faults.training_step:never_reduced``.
"""

from __future__ import annotations

from . import (
    context,
    experts,
    microbatches,
    optimizer,
    precision,
    replicas,
    second_loss,
    stages,
    tensor_ranks,
    use,
    weights,
)
from .registry import STEP_FAULTS, StepFault

__all__ = [
    "STEP_FAULTS",
    "StepFault",
    "context",
    "experts",
    "microbatches",
    "optimizer",
    "precision",
    "replicas",
    "second_loss",
    "stages",
    "tensor_ranks",
    "use",
    "weights",
]


def __getattr__(name: str) -> StepFault:
    """Return a fault by its name with underscores."""
    found = STEP_FAULTS.get(name.replace("_", "-"))
    if found is None:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return found
