"""What trials differ in besides, and no row has: why not, and which checks try it on their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Something that rows leave out; ``checks`` are globs over the ids of those that have it, if any do."""

    what: str
    because: str
    checks: tuple[str, ...] = ()


ELSEWHERE = (
    Elsewhere(
        "a hook, a custom Function or a saved-tensor hook that raises",
        "how far autograd came when it stopped is nobody's rule, so that what is left is judged by other rules than a "
        "gradient, and most of what else a row has could not be seen",
        ("errors.surface.*", "errors.left.*", "errors.next.*"),
    ),
    Elsewhere(
        "outputs in a dataclass",
        "nobody meets them: torch's PipelineStage refuses them (`Stage args must be a tensor, tuple, or list of "
        "tensors`), and its stage_backward takes one for no tensor, so that it does nothing",
    ),
    Elsewhere(
        "parameters replaced or bound anew between backwards",
        "rows have what every optimizer does, which is to change them in place (stepped)",
        ("steps.params.replace-*", "steps.params.rebind-*"),
    ),
    Elsewhere(
        "freezing and thawing between F and B, or I and W",
        "plain autograd has no I and W, so that what is right hangs on the order",
        ("steps.frozen.*",),
    ),
    Elsewhere(
        "gradients with other strides, or in a bucket, handed over between I and W",
        "rows have what a step begins with (cleared, zeroed)",
        ("steps.grads.*",),
    ),
    Elsewhere(
        "stages that are opened late, parameters that two stages share",
        "rows have two sessions that begin together (beside, one-module)",
        ("steps.opened_late.*", "steps.tied.*"),
    ),
    Elsewhere(
        "what the garbage collector runs",
        "when it does is measured, and rows are judged by values",
        ("lifetime.collected.*",),
    ),
    Elsewhere(
        "checkpoints that re-enter autograd",
        "plain autograd takes them in B alone, and only for inputs that need a gradient",
        ("accumulate.reentrant.*", "split.reentrant.*", "full.*.checkpoint-reentrant"),
    ),
    Elsewhere(
        "hooks on activations, outputs and modules, and those that move a gradient",
        "one that is called in both passes of a split is right and changes counts, so that each has a judge of its own",
        ("hooks.*",),
    ),
    Elsewhere(
        "edges in place of outputs",
        "torch's runtime hands them over since 2.15",
        ("edges.*",),
    ),
)
