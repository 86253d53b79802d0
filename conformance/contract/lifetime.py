"""Lifetime: with the garbage collector off, tensors of a micro-batch are freed when plain autograd frees them."""

from __future__ import annotations

from gradconform.judge import gradients
from gradconform.judge.lifetime import no_growth, outputs_released_by_input_pass, released

from .cases import over, ways
from .check import Judge, family

_LIFETIME = frozenset({"lifetime"})
_GROWTH = frozenset({"growth"})
_DROPPED_BETWEEN = "F0 I0 drop0 W0 F1 I1 drop1 W1"
_STAGES = ("mlp", "residual", "three-outputs", "tied-parallel", "lstm", "custom-linear", "two-inputs", "checkpoint")


@family("lifetime.full", over(_STAGES, "F0 F1 B0 drop0 B1 drop1", watch=_LIFETIME), level="SHOULD")
def after_full() -> Judge:
    """Outputs, saved tensors and arguments SHOULD be freed after B without the garbage collector, on {stage}.

    Activations that live until the garbage collector runs exhaust memory (pytorch #136507).

    Catches: a reference cycle through a closure, or outputs kept in a list.
    """
    return released


@family("lifetime.split", over(_STAGES, "F0 F1 I0 drop0 I1 drop1 W0 W1", watch=_LIFETIME), level="SHOULD")
def after_split() -> Judge:
    """Outputs, saved tensors and arguments SHOULD be freed after W without the garbage collector, on {stage}.

    Hooks, contexts and graph nodes easily form a cycle that keeps every activation (pytorch #136584, #138720).

    Catches: a context kept after W, a hook left on a node, or a retained graph.
    """
    return released


@family(
    "lifetime.loss",
    ways("mlp", full="F0 B0 drop0 F1 B1 drop1", split=_DROPPED_BETWEEN, loss=True, watch=_LIFETIME),
    level="SHOULD",
)
def after_loss() -> Judge:
    """A backward from a loss SHOULD keep nothing of its micro-batch alive, in program {program}.

    The loss holds the whole graph, so one kept loss keeps all activations of its micro-batch.

    Catches: losses that are collected for logging together with their graphs.
    """
    return released


@family(
    "lifetime.outputs_between",
    over(("mlp", "three-outputs", "residual"), _DROPPED_BETWEEN, watch=_LIFETIME),
    level="SHOULD",
)
def outputs_between() -> Judge:
    """Outputs SHOULD be freed between I and W once the caller has freed them, on {stage}.

    Zero-bubble schedules delay W; every output kept until then costs memory that the split should save.

    Catches: outputs that are stored with the weight context.
    """
    return outputs_released_by_input_pass


@family(
    "lifetime.dropped",
    over(
        ("mlp", "two-outputs", "lstm", "chunk", "tied-parallel", "checkpoint", "custom-output"),
        "F0 F1 I0 drop0 I1 drop1 W1 W0",
    ),
    seed={"custom-output": "test_stage_backward_weight_custom_autograd_function"},
)
def dropped() -> Judge:
    """W MUST be right after its micro-batch's outputs and inputs are freed, in program {program} on {stage}.

    A pipeline sends its outputs and reuses their memory before W runs.

    Catches: a weight context that holds outputs weakly, or that recomputes from freed inputs.
    """
    return gradients


@family("lifetime.collected", over(("mlp", "two-outputs"), "F0 F1 I0 drop0 I1 drop1 collect W1 collect W0"))
def collected() -> Judge:
    """W MUST be right after the garbage collector has run, in program {program} on {stage}.

    The garbage collector may run at any time, and frees every object that only a reference cycle keeps alive.

    Catches: a weight context that holds its graph weakly, so that only a reference cycle keeps it alive.
    """
    return gradients


@family(
    "lifetime.reopened",
    ways(
        ("mlp", "tied-parallel", "layer-norm"),
        full="F0 B0 finish zero_none reopen F1 B1 finish",
        split="F0 I0 W0 finish zero_none reopen F1 I1 W1 finish",
    ),
)
def reopened() -> Judge:
    """A second session on a module MUST be right after the first closes, in program {program} on {stage}.

    A new schedule for the same model silently trains on wrong numbers if a closed session left hooks on the module.

    Catches: hooks that stay on parameters after the session is closed.
    """
    return gradients


@family(
    "lifetime.after_error",
    ways("mlp", full="F0 B0! drop0", split="F0 I0! drop0", output_grads="shape", watch=_LIFETIME),
    level="SHOULD",
)
def after_error() -> Judge:
    """An action that raised SHOULD keep nothing of its micro-batch alive, in program {program}.

    A run that catches the error and continues keeps the failed micro-batch's activations forever.

    Catches: hooks and contexts that are removed only if nothing raises, or an exception kept with its frames.
    """
    return released


def _many(letters: str) -> str:
    return " ".join(f"{' '.join(f'{letter}{mb}' for letter in letters)} drop{mb}" for mb in range(50))


@family("lifetime.growth", ways("mlp", full=_many("FB"), split=_many("FIW"), watch=_GROWTH), level="SHOULD")
def growth() -> Judge:
    """The number of live tensors SHOULD NOT grow from the 20th to the 50th micro-batch.

    A leak of one tensor per micro-batch ends a long run.

    Catches: a list or dict that gains one entry per micro-batch.
    """
    return no_growth
