"""Features of trials that no row of the space has: the reasons, and the checks that test them separately."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A feature that no row has; ``checks`` are globs over the ids of checks that test it, if any."""

    what: str
    because: str
    checks: tuple[str, ...] = ()


UNCOVERED = (
    Uncovered(
        "a hook, a custom Function or a saved-tensor hook that raises",
        "autograd may stop at any point, so an error needs rules of its own and hides most other values of a row",
        ("errors.surface.*", "errors.left.*", "errors.next.*"),
    ),
    Uncovered(
        "outputs in a dataclass",
        "no pipeline uses them: torch's PipelineStage refuses them (`Stage args must be a tensor, tuple, or list of "
        "tensors`), and its stage_backward ignores an output that is no tensor",
    ),
    Uncovered(
        "parameters replaced or rebound between backwards",
        "rows change parameters in place, as every optimizer does (stepped)",
        ("steps.params.replace-*", "steps.params.rebind-*"),
    ),
    Uncovered(
        "freezing and unfreezing between F and B, or between I and W",
        "plain autograd has no I and W, so the right gradients depend on the order",
        ("steps.frozen.*",),
    ),
    Uncovered(
        "gradients that the caller moves to other strides or a bucket between I and W",
        "rows change gradients at the start of a step only (cleared, zeroed)",
        ("steps.grads.*",),
    ),
    Uncovered(
        "stages that are opened late, parameters that two stages share",
        "rows open two sessions together (beside, one-module)",
        ("steps.opened_late.*", "steps.tied.*"),
    ),
    Uncovered(
        "runs of the garbage collector",
        "their effect depends on timing, and rows are judged by values",
        ("lifetime.collected.*",),
    ),
    Uncovered(
        "checkpoints that re-enter autograd",
        "plain autograd supports them in B only, and only for inputs that need a gradient",
        ("accumulate.reentrant.*", "split.reentrant.*", "full.*.checkpoint-reentrant"),
    ),
    Uncovered(
        "hooks on activations, outputs and modules, and those that move a gradient",
        "both passes of a split may call such a hook, which changes counts, so each kind has its own judge",
        ("hooks.*",),
    ),
    Uncovered(
        "edges instead of outputs",
        "only torch 2.15 and later pass them",
        ("edges.*",),
    ),
)
