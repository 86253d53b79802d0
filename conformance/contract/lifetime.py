"""Lifetime: with the garbage collector off, what a micro-batch made is gone when plain autograd's would be."""

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
    """Outputs, saved tensors and arguments SHOULD be gone after B without the garbage collector, on {stage}.

    Activations that live until the collector runs are what memory runs out of (pytorch #136507).

    Catches: a reference cycle through a closure, outputs kept in a list.
    """
    return released


@family("lifetime.split", over(_STAGES, "F0 F1 I0 drop0 I1 drop1 W0 W1", watch=_LIFETIME), level="SHOULD")
def after_split() -> Judge:
    """Outputs, saved tensors and arguments SHOULD be gone after W without the garbage collector, on {stage}.

    Hooks, contexts and graph nodes easily form a cycle that keeps every activation (pytorch #136584, #138720).

    Catches: a context kept after W, a hook left behind on a node, a graph retained.
    """
    return released


@family(
    "lifetime.loss",
    ways("mlp", full="F0 B0 drop0 F1 B1 drop1", split=_DROPPED_BETWEEN, loss=True, watch=_LIFETIME),
    level="SHOULD",
)
def after_loss() -> Judge:
    """A loss-driven backward SHOULD leave nothing of its micro-batch alive, in {program}.

    The loss holds the whole graph.

    Catches: losses collected for logging with their graphs.
    """
    return released


@family(
    "lifetime.outputs_between",
    over(("mlp", "three-outputs", "residual"), _DROPPED_BETWEEN, watch=_LIFETIME),
    level="SHOULD",
)
def outputs_between() -> Judge:
    """Outputs SHOULD be freed between I and W once their caller lets go of them, on {stage}.

    Zero-bubble schedules defer W to fill bubbles; every output kept until then is memory the split was to save.

    Catches: outputs stored beside the weight context.
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
    """W MUST be right after its micro-batch's outputs and inputs were freed, in {program} on {stage}.

    A pipeline sends its outputs away and reuses their memory before W runs.

    Catches: a weight context that refers to outputs weakly, or recomputes from freed inputs.
    """
    return gradients


@family("lifetime.collected", over(("mlp", "two-outputs"), "F0 F1 I0 drop0 I1 drop1 collect W1 collect W0"))
def collected() -> Judge:
    """W MUST be right after the garbage collector has run, in {program} on {stage}.

    What only a cycle keeps alive lives until the collector comes, which is any time.

    Catches: a weight context that holds its graph weakly, and lives by a cycle alone.
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
    """A second session on a module, opened when the first is closed, MUST be right, in {program} on {stage}.

    A schedule is made anew for the same model, with other micro-batches, say; the numbers that then come out wrong are
    those of a run that goes on without a word. What an implementation puts on a module goes with its session.

    Catches: hooks left on parameters.
    """
    return gradients


@family(
    "lifetime.after_error",
    ways("mlp", full="F0 B0! drop0", split="F0 I0! drop0", output_grads="shape", watch=_LIFETIME),
    level="SHOULD",
)
def after_error() -> Judge:
    """An action that raised SHOULD leave nothing of its micro-batch alive, in {program}.

    A run that catches the error and goes on would keep the failed micro-batch's activations for good.

    Catches: hooks and contexts cleaned up only where nothing raises, an exception kept with its frames.
    """
    return released


def _many(letters: str) -> str:
    return " ".join(f"{' '.join(f'{letter}{mb}' for letter in letters)} drop{mb}" for mb in range(50))


@family("lifetime.growth", ways("mlp", full=_many("FB"), split=_many("FIW"), watch=_GROWTH), level="SHOULD")
def growth() -> Judge:
    """The number of live tensors SHOULD NOT grow over 50 micro-batches.

    A leak of one tensor per micro-batch ends a long run.

    Catches: a list or dict that gains an entry per micro-batch.
    """
    return no_growth
