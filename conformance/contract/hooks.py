"""Hooks: they fire as often as under plain autograd, when the gradient is there."""

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
    """Hooks on parameters SHOULD be called as often as under plain autograd, in {program} on {stage}.

    Gradient clipping, masking and logging hang on them.

    Catches: hooks never called in W (pytorch #144530), or called in I and again in W.
    """
    return partial(hooks.fire_as_often, kind="tensor")


@family("hooks.tensor_grad", _FULL, level="SHOULD", needs=("hooks!=nowhere",))
@family("hooks.tensor_grad", _SPLIT, level="SHOULD", needs=("hooks=with_grad",))
def tensor_grad() -> Judge:
    """A hook on a parameter, if called, SHOULD be given the gradient autograd gives it, in {program} on {stage}.

    A hook that sees a part of the gradient clips or logs the wrong thing.

    Catches: a hook called with the accumulated gradient, or with one use of a tied parameter.
    """
    return partial(hooks.given_the_gradient, kind="tensor")


@family("hooks.post_accumulate", _FULL, level="SHOULD", needs=("hooks!=nowhere", "post_accumulate_hooks"))
@family("hooks.post_accumulate", _SPLIT, level="SHOULD", needs=("hooks=with_grad", "post_accumulate_hooks"))
def post_accumulate() -> Judge:
    """Post-accumulate-gradient hooks SHOULD fire as often as under plain autograd, in {program} on {stage}.

    DDP and an optimizer in the backward start from them: where they do not fire, nothing is reduced and nothing is
    updated (pytorch #144535, #134052).

    Catches: gradients written to .grad behind autograd's back.
    """
    return partial(hooks.fire_as_often, kind="post_accumulate")


@family("hooks.post_accumulate_grad", _FULL, level="SHOULD", needs=("hooks!=nowhere", "grads_in_param_grad"))
@family("hooks.post_accumulate_grad", _SPLIT, level="SHOULD", needs=("hooks=with_grad", "grads_in_param_grad"))
def post_accumulate_grad() -> Judge:
    """When a post-accumulate-gradient hook fires, the gradient SHOULD be there, in {program} on {stage}.

    A reduction that starts before the gradient is added reduces the value of the micro-batch before.

    Catches: hooks fired in I while the gradient comes in W.
    """
    return partial(hooks.given_the_gradient, kind="post_accumulate")


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
    """What hooks on parameters make of a gradient MUST be made of it exactly once, in {program} on {stage}.

    A hook that scales, masks or clips returns another gradient; one behind the accumulation moves it into a shard or a
    wider sum, and leaves .grad empty. Called twice, or not at all, either is a wrong number that nothing tells.

    Catches: a hook applied in I and again in W, or twice in one pass; a gradient stored behind autograd's back.
    """
    return gradients


@family(
    "hooks.value",
    ways(("module-hooks", "output-hook", "multi-grad-hook"), full=_FULL_PROGRAM, split="F0 F1 I0 I1 W1 W0"),
)
def value() -> Judge:
    """Hooks of modules and on outputs MUST change each gradient exactly once, in {program} on {stage}.

    A stage may scale what passes between its layers; I and W each pass there, and neither may do so for the other.

    Catches: gradients taken in I before a hook has changed them, and started from in W as they were.
    """
    return gradients


@family(
    "hooks.own",
    ways(("multi-grad-hook",), full=_FULL_PROGRAM, watch=_HOOKS),
    level="SHOULD",
    needs=("module_hooks",),
)
def own() -> Judge:
    """A hook over several gradients SHOULD be called once per backward, in {program} on {stage}.

    It waits for all of them: a backward in parts calls it for each, or never.

    Catches: a full backward made of several, one per output.
    """
    return partial(hooks.fire_as_often, kind="own")


@family(
    "hooks.module",
    ways(("mlp", "frozen-layer"), full=_FULL_PROGRAM, watch=_MODULES),
    level="SHOULD",
    needs=("module_hooks",),
)
def module() -> Judge:
    """Full-backward hooks of modules SHOULD fire as often as under plain autograd, in {program} on {stage}.

    Profilers and activation statistics hang on them.

    Catches: a backward that walks around the modules.
    """
    return partial(hooks.fire_as_often, kind="module")


@family(
    "hooks.module_at_all",
    ways(("two-inputs",), split=_SPLIT_PROGRAM, watch=_MODULES),
    level="SHOULD",
    needs=("module_hooks",),
)
def module_at_all() -> Judge:
    """Full-backward hooks of modules SHOULD fire in a split backward, in {program} on {stage}.

    Two passes may call them twice; never is too few.

    Catches: a split backward that walks around the modules.
    """
    return partial(hooks.fire_at_all, kind="module")


@family(
    "hooks.last_module",
    ways(("mlp",), full=_FULL_PROGRAM, split=_SPLIT_PROGRAM, watch=_MODULES),
    needs=("module_hooks",),
)
def last_module() -> Judge:
    """A full-backward hook on the stage's last module MUST NOT change any gradient, in {program} on {stage}.

    Such a hook passes the module's outputs through a node of its own, which returns views.

    Catches: outputs detached in place, which a view refuses.
    """
    return gradients
