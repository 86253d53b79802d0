"""Split backward: I, then W, compared with plain autograd, on every stage of the zoo."""

from __future__ import annotations

from gradconform.fixtures.programs import split_deferred, split_immediate
from gradconform.judge import gradients
from gradconform.judge.bias import BIAS
from gradconform.judge.refusal import right_or_refused

from .cases import (
    BUILDS,
    LATER_STAGES,
    NEWEST_STAGES,
    OLD_SPLIT_LOSSES,
    RARER_STAGES,
    REENTRANT,
    SEED_SIZE,
    SPLIT_LOSSES,
    USUAL_STAGES,
    draws,
    of,
    over,
)
from .check import Judge, family

PROGRAM = split_deferred(2)
#: Rows of torch's own suite, by the stage that is like theirs.
SEED = {
    "mlp": "test_stage_backward_input",
    "nontensor-inputs": "test_stage_backward_input_ignores_non_tensor_inputs",
    "output-view": "test_stage_backward_input_with_view_output",
    "chunk": "test_stage_backward_multi_output_intermediate",
    "tied-apart": "test_stage_backward_weight_shared_weights",
}


@family("split.gradients", over(NEWEST_STAGES, PROGRAM), since="1.3")
@family("split.gradients", over(LATER_STAGES, PROGRAM), since="1.1")
@family("split.gradients", over(RARER_STAGES, PROGRAM), profile="full")
@family("split.gradients", over(USUAL_STAGES, PROGRAM), seed=SEED)
def gradient_driven() -> Judge:
    """I MUST return plain autograd's input gradients, and W accumulate its parameter gradients, on {stage}.

    W starts in the middle of the graph, so every parameter gradient that I forgets to store is lost silently.

    Catches: a parameter gradient that W drops or counts twice, or an input gradient of I that differs from that of B.
    """
    return gradients


@family("split.loss", over(OLD_SPLIT_LOSSES, PROGRAM, loss=True), until="1.1")
@family("split.loss", over(SPLIT_LOSSES, PROGRAM, loss=True))
def loss_driven() -> Judge:
    """From a loss, I and W MUST give plain autograd's input and parameter gradients, on {stage}.

    The last stage of a split schedule starts from a 0-d loss without output gradients.

    Catches: a loss gradient that is lost between I and W (ColossalAI #6034), or a parameter that only the loss uses.
    """
    return gradients


@family(
    "split.reentrant",
    {"gradients": of(REENTRANT[0].name, PROGRAM), "loss": of(REENTRANT[0].name, PROGRAM, loss=True)},
)
def reentrant() -> Judge:
    """I and W MUST match a full backward, unless I raises and changes nothing, on {stage}.

    Reentrant checkpointing only runs whole backwards, so torch refuses a split; a split that accepts it must hold
    parameter gradients back until W.

    Catches: parameter gradients that the inner backward adds in I and W adds again, or a W that raises after its I.
    """
    return right_or_refused


@family(
    "split.bias",
    {
        "gradients": draws(of("thousands", PROGRAM)),
        "loss": draws(of("thousands", PROGRAM, loss=True)),
    },
    pooled=BIAS,
)
def unbiased() -> Judge:
    """I's and W's errors from {case} MUST average out to zero and spread no wider than rounding, on {stage}.

    In bfloat16 or float16, a factor on all elements looks like rounding in each element, but it does not average out.

    Catches: gradients scaled by one percent (such as a mean over one row too few), truncated, or rounded through a
    narrower dtype.
    """
    return gradients


@family("split.seed_size", over(SEED_SIZE, split_immediate(1)), profile="full", seed="test_stage_backward_weight")
def seed_size() -> Judge:
    """I and W MUST give the gradients of plain autograd, on {stage}.

    torch's own tests use width 512 and batch 256, where sums are long and kernels are blocked and threaded.

    Catches: an error that only a long sum or a blocked kernel shows.
    """
    return gradients


@family(
    "split.retain_graph",
    {
        "mlp": of("mlp", PROGRAM, loss=True, retain_graph=True),
        "tied-apart": of("tied-apart", PROGRAM, retain_graph=True),
        "looped-block": of("looped-block", BUILDS, retain_graph=True),
        "merged-paths": of("merged-paths", PROGRAM, retain_graph=True),
    },
    seed={"mlp": "test_stage_backward_weight"},
)
def retain_graph() -> Judge:
    """I, and W with retain_graph, MUST give the gradients of plain autograd, on {stage}.

    torch's own tests call W this way, and two walks of a kept graph can meet in it.

    Catches: a parameter that is counted twice because two kept paths reach it.
    """
    return gradients
