"""All areas, and the checks of profile ``quick``, which takes a few seconds and covers each area: one short list.

Importing this module registers every check of every version, and takes a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from . import (
    accumulate,
    caller,
    counts,
    differing,
    edges,
    errors,
    full,
    grad_tuple,
    hooks,
    lifetime,
    misuse,
    mode,
    repeat,
    schedule,
    split,
    state,
    steps,
)
from . import property as properties
from .check import Check, registered
from .space import checks as space
from .space.checks import quick_rows

__all__ = [
    "CHECKS", "accumulate", "caller", "counts", "differing", "edges", "errors", "full", "grad_tuple", "hooks",
    "lifetime", "misuse", "mode", "properties", "repeat", "schedule", "space", "split", "state", "steps",
]  # fmt: skip

#: Checks in the target's supported ways (full, split) that no claim can withhold: the minimum for conformance.
CORE = (
    "accumulate.in_flight.full", "accumulate.iterations.full-3", "full.gradients.frozen-layer", "full.gradients.mlp",
    "full.loss.mlp",
    "accumulate.in_flight.split", "accumulate.iterations.split-3", "split.gradients.frozen-layer",
    "split.gradients.mlp", "split.loss.mlp",
)  # fmt: skip

#: Stages that represent a class of their own: full and split, from output gradients and, if there is one, a loss.
QUICK_STAGES = (
    "mlp", "linear-3d", "conv2d", "layer-norm", "transformer-layer", "embedding", "lstm", "residual", "tied-apart",
    "chunk", "two-inputs", "two-outputs", "unused-input", "frozen-layer", "batch-norm", "dropout", "dict-output",
    "parameter-only-output",
)  # fmt: skip

#: Ids of the other areas.
QUICK_CHECKS = (
    "accumulate.in_place.split",
    "accumulate.iterations.full-3",
    "accumulate.iterations.split-3",
    "accumulate.order.full-reversed",
    "accumulate.order.mixed",
    "accumulate.order.split-reversed",
    "accumulate.prior.split",
    "accumulate.reused_input.split",
    "accumulate.stage.lstm",
    "accumulate.steps.split-zero-none",
    "accumulate.two_stages.split",
    "edges.full.two-outputs",
    "edges.split.two-outputs",
    "errors.next.raising-hook-split",
    "errors.surface.raising-hook-split",
    "grad_tuple.by_hand.three-middle-none",
    "full.gradients.conv2d-channels-last",
    "grad_tuple.layout.channels-last-full",
    "grad_tuple.layout.channels-last-split",
    "grad_tuple.layout.expanded-split",
    "grad_tuple.none.first-full",
    "grad_tuple.none.first-split",
    "grad_tuple.nonfinite.nan-split",
    "grad_tuple.size.five-split",
    "grad_tuple.too_long.split",
    "grad_tuple.wrong.short-full",
    "grad_tuple.wrong.short-split",
    "hooks.altered.scale-mlp-split",
    "hooks.module.mlp-full",
    "hooks.post_accumulate.mlp-full",
    "hooks.post_accumulate.mlp-split",
    "hooks.post_accumulate_grad.mlp-split",
    "hooks.tensor.mlp-split",
    "lifetime.after_error.split",
    "lifetime.dropped.mlp",
    "lifetime.full.mlp",
    "lifetime.growth.split",
    "lifetime.split.mlp",
    "misuse.forgotten_weight.next-session",
    "misuse.next_session.shape-split",
    "misuse.weight_twice.mlp",
    "mode.gradients.no-grad-mlp-split",
    "mode.gradients.thread-mlp-full",
    "repeat.graph_builds.tied-adjacent",
    "schedule.gradients.1f1b-2x1x3",
    "schedule.gradients.zbv-zero-bubble-2x2x3",
    "split.gradients.conv2d-channels-last",
    "split.gradients.hidden-states",
    "split.gradients.one-address",
    "split.gradients.residual-linear",
    "state.args.mlp-split",
    "state.buffers.batch-norm-split",
    "state.input_pass.mlp",
    "state.output_grads.bare-bias-split",
    "state.params.mlp-split",
    "state.requires_grad.frozen-layer-split",
    "state.returned.mlp-split",
    "state.rng.dropout-split",
    "state.stored_storage.bare-bias-split",
    "state.weight_result.mlp",
    "steps.params.step-full",
    "steps.params.step-split",
)


def _marked(checks: Mapping[str, Check]) -> dict[str, Check]:
    """Return the checks with those of profile ``quick`` and the core marked; raise ``KeyError`` for an unknown id."""
    listed = {
        *QUICK_CHECKS,
        *CORE,
        *quick_rows(),
        *(f"{way}.gradients.{name}" for way in ("full", "split") for name in QUICK_STAGES),
    }
    losses = {f"{way}.loss.{name}" for way in ("full", "split") for name in QUICK_STAGES}
    unknown = sorted(listed - set(checks))
    if unknown:
        msg = f"profile quick lists checks that do not exist: {unknown}"
        raise KeyError(msg)
    quick = {i: replace(check, profile="quick") if i in listed | losses else check for i, check in checks.items()}
    return {i: replace(check, core=True) if i in CORE else check for i, check in quick.items()}


#: Every check of every version by id, sorted.
CHECKS: dict[str, Check] = _marked(registered())
