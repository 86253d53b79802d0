"""Hooks: they run as often as under plain autograd, with the gradient that plain autograd gives them."""

from __future__ import annotations

from functools import partial

from gradconform.judge import gradients, hooks

from .cases import ways
from .check import Judge, family

_HOOKS = frozenset({"hooks"})
_MODULES = frozenset({"module_hooks"})
_STAGES = ("mlp", "tied-parallel", "frozen-layer")


_FULL_PROGRAM, _SPLIT_PROGRAM = "F0 F1 B0 B1", "F0 I0 F1 I1 W0 W1"
_FULL = ways(_STAGES, full=_FULL_PROGRAM, watch=_HOOKS)
_SPLIT = ways(_STAGES, split=_SPLIT_PROGRAM, watch=_HOOKS)


@family("hooks.tensor", _FULL, level="SHOULD", needs=("hooks!=nowhere",))
@family("hooks.tensor", _SPLIT, level="SHOULD", needs=("hooks=with_grad",))
def tensor() -> Judge:
    """Parameter hooks SHOULD be called as often as under plain autograd, in program {program} on {stage}.

    Gradient clipping, masking and logging depend on these hooks.

    Catches: hooks that W never calls (pytorch #144530), or that I and W both call.
    """
    return partial(hooks.fire_as_often, kind="tensor")


@family("hooks.tensor_grad", _FULL, level="SHOULD", needs=("hooks!=nowhere",))
@family("hooks.tensor_grad", _SPLIT, level="SHOULD", needs=("hooks=with_grad",))
def tensor_grad() -> Judge:
    """A called parameter hook SHOULD receive plain autograd's gradient, in program {program} on {stage}.

    A hook that receives only a part of the gradient clips or logs a wrong value.

    Catches: a hook called with the accumulated gradient, or with one use of a tied parameter.
    """
    return partial(hooks.given_the_gradient, kind="tensor")


@family("hooks.post_accumulate", _FULL, level="SHOULD", needs=("hooks!=nowhere", "post_accumulate_hooks"))
@family("hooks.post_accumulate", _SPLIT, level="SHOULD", needs=("hooks=with_grad", "post_accumulate_hooks"))
def post_accumulate() -> Judge:
    """Post-accumulate-gradient hooks SHOULD run as often as under plain autograd, in program {program} on {stage}.

    DDP and optimizers in the backward start from these hooks; without them, no gradient is reduced or applied (pytorch
    #144535, #134052).

    Catches: gradients that are written to .grad without autograd's accumulation.
    """
    return partial(hooks.fire_as_often, kind="post_accumulate")


@family("hooks.post_accumulate_grad", _FULL, level="SHOULD", needs=("hooks!=nowhere", "grads_in_param_grad"))
@family("hooks.post_accumulate_grad", _SPLIT, level="SHOULD", needs=("hooks=with_grad", "grads_in_param_grad"))
def post_accumulate_grad() -> Judge:
    """A post-accumulate-gradient hook SHOULD find the accumulated gradient, in program {program} on {stage}.

    A reduction that starts before the gradient is added reduces the value of the previous micro-batch.

    Catches: hooks that run in I although the gradient arrives in W.
    """
    return partial(hooks.given_the_gradient, kind="post_accumulate")


@family(
    "hooks.altered",
    {
        f"clip-{name}": trial
        for name, trial in ways(("tied-parallel",), full=_FULL_PROGRAM, split=_SPLIT_PROGRAM, altering="clip").items()
    },
    since="1.1",
)
@family(
    "hooks.altered",
    {
        f"{how}-{name}": trial
        for how in ("scale", "move")
        for name, trial in ways(
            ("mlp", "tied-parallel"), full=_FULL_PROGRAM, split=_SPLIT_PROGRAM, altering=how
        ).items()
    },
)
def altered() -> Judge:
    """A parameter hook that changes its gradient MUST apply exactly once, in program {program} on {stage}.

    A hook that scales a gradient or moves it out of .grad silently gives a wrong number if it runs twice or never.

    Catches: a hook that is applied twice, by I and W or by one pass, to a part of the gradient, or not at all.
    """
    return gradients


@family(
    "hooks.value",
    ways(("module-hooks", "output-hook", "multi-grad-hook"), full=_FULL_PROGRAM, split="F0 F1 I0 I1 W1 W0"),
)
def value() -> Judge:
    """Module and output hooks MUST change each gradient exactly once, in program {program} on {stage}.

    A stage may scale gradients between its layers; I and W both pass there, and each must see the scaled value.

    Catches: gradients that I takes before a hook has changed them, and that W then starts from.
    """
    return gradients


@family(
    "hooks.own",
    ways(("multi-grad-hook",), full=_FULL_PROGRAM, watch=_HOOKS),
    level="SHOULD",
    needs=("module_hooks",),
)
def own() -> Judge:
    """A hook on several gradients SHOULD be called once per backward, in program {program} on {stage}.

    The hook waits for all its gradients; a backward in parts calls it for each part, or never.

    Catches: a full backward made of several backwards, one per output.
    """
    return partial(hooks.fire_as_often, kind="own")


@family(
    "hooks.module",
    ways(("mlp", "frozen-layer"), full=_FULL_PROGRAM, watch=_MODULES),
    level="SHOULD",
    needs=("module_hooks",),
)
def module() -> Judge:
    """Full-backward module hooks SHOULD run as often as under plain autograd, in program {program} on {stage}.

    Profilers and activation statistics depend on these hooks.

    Catches: a backward that bypasses the modules.
    """
    return partial(hooks.fire_as_often, kind="module")


@family(
    "hooks.module_at_all",
    ways(("two-inputs",), split=_SPLIT_PROGRAM, watch=_MODULES),
    level="SHOULD",
    needs=("module_hooks",),
)
def module_at_all() -> Judge:
    """Full-backward module hooks SHOULD run at least once in a split backward, in program {program} on {stage}.

    Two passes may call a hook twice, but a profiler needs at least one call.

    Catches: a split backward that bypasses the modules.
    """
    return partial(hooks.fire_at_all, kind="module")


@family(
    "hooks.last_module",
    ways(("mlp",), full=_FULL_PROGRAM, split=_SPLIT_PROGRAM, watch=_MODULES),
    needs=("module_hooks",),
)
def last_module() -> Judge:
    """A full-backward hook on the last module MUST NOT change any gradient, in program {program} on {stage}.

    Such a hook passes the stage's outputs through its own node, which returns views.

    Catches: outputs that are detached in place, which fails on a view.
    """
    return gradients
