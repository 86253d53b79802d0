"""Split backward: I, then W, against plain autograd, over the stage zoo."""

from __future__ import annotations

from gradconform.fixtures.programs import split_deferred, split_immediate
from gradconform.judge import gradients
from gradconform.judge.bias import BIAS
from gradconform.judge.refusal import right_or_refused

from .cases import BUILDS, LOSS_STAGES, REENTRANT, SEED_SIZE, STAGES, draws, of, over
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


@family("split.gradients", over(STAGES, PROGRAM), seed=SEED)
def gradient_driven() -> Judge:
    """I MUST return every input gradient, and W accumulate every parameter gradient, of plain autograd on {stage}.

    Zero-bubble schedules split the backward in two, and the second half starts in the middle of the graph: what the
    first half did not note down is lost without a word.

    Catches: a parameter gradient dropped or counted twice in W, an input gradient that I gives another value than B.
    """
    return gradients


@family("split.loss", over(LOSS_STAGES, PROGRAM, loss=True))
def loss_driven() -> Judge:
    """I and W from a loss MUST give every input gradient and parameter gradient of plain autograd on {stage}.

    The last stage of a split schedule starts at a 0-d loss with no output gradient.

    Catches: a gradient of the loss that is lost between I and W (ColossalAI #6034), a parameter used only by the loss.
    """
    return gradients


@family(
    "split.reentrant",
    {"gradients": of(REENTRANT[0].name, PROGRAM), "loss": of(REENTRANT[0].name, PROGRAM, loss=True)},
)
def reentrant() -> Judge:
    """I, and W after it, MUST give the gradients of a full backward on {stage}; or I is refused, and changes nothing.

    Checkpointing that re-enters autograd takes only a backward over everything, so torch refuses to run a part of one.
    Whoever splits all the same runs all of it in I, and keeps from the parameters until W what they got.

    Catches: parameter gradients accumulated in I by the backward inside, and again in W; W refused after its I.
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
    """I and W from {case} MUST be off by no factor in the mean, and spread no wider than by rounding, on {stage}.

    In a coarse dtype an error in all elements, such as a mean over one row too few, passes for rounding in each of
    them; over many it does not, since rounding cancels and a factor does not.

    Catches: gradients scaled by a per cent, truncated in place of rounded, or rounded through a narrower dtype.
    """
    return gradients


@family("split.seed_size", over(SEED_SIZE, split_immediate(1)), profile="full", seed="test_stage_backward_weight")
def seed_size() -> Judge:
    """I and W MUST give the gradients of plain autograd on {stage}.

    torch's own suite runs at width 512 and batch 256, where sums are long and kernels are blocked and threaded.

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
    """I, and W that is asked to keep the graph, MUST give the gradients of plain autograd on {stage}.

    torch's own suite calls W in this way; a graph that is kept also lets two walks meet in it.

    Catches: a parameter reached along two kept paths counted twice.
    """
    return gradients
