"""Full backward: B against plain autograd, over the stage zoo."""

from __future__ import annotations

from gradconform.fixtures.programs import full_all_forwards_first, full_immediate
from gradconform.judge import gradients
from gradconform.judge.bias import BIAS

from .cases import LOSS_STAGES, REENTRANT, SEED_SIZE, STAGES, draws, of, over
from .check import Judge, family

PROGRAM = full_immediate(2)


@family("full.gradients", over((*STAGES, *REENTRANT), PROGRAM))
def gradient_driven() -> Judge:
    """B MUST return every input gradient, and accumulate every parameter gradient, of plain autograd on {stage}.

    A stage in the middle of a pipeline is handed output gradients by the next one; what it returns is handed on to
    the one before it, so a wrong slot, None or number spreads to all earlier stages.

    Catches: a gradient in the wrong slot, dropped, doubled, or of another shape, dtype or device.
    """
    return gradients


@family("full.loss", over((*LOSS_STAGES, *REENTRANT), PROGRAM, loss=True), seed={"mlp": "test_stage_backward"})
def loss_driven() -> Judge:
    """B from a loss MUST return every input gradient, and accumulate every parameter gradient, of autograd on {stage}.

    The last stage of a pipeline starts at a 0-d loss with no output gradient: another path through the code than the
    one every other stage takes.

    Catches: a loss gradient other than 1, a loss divided twice, a parameter reached only through the loss left out.
    """
    return gradients


@family(
    "full.bias",
    {
        "gradients": draws(of("thousands", full_all_forwards_first(2))),
        "loss": draws(of("thousands", full_all_forwards_first(2), loss=True)),
    },
    pooled=BIAS,
)
def unbiased() -> Judge:
    """B from {case} MUST be off by no factor in the mean, and spread no wider than by rounding, on {stage}.

    In a coarse dtype an error in all elements, such as a mean over one row too few, passes for rounding in each of
    them; over many it does not, since rounding cancels and a factor does not.

    Catches: gradients scaled by a per cent, truncated in place of rounded, or rounded through a narrower dtype.
    """
    return gradients


@family("full.seed_size", over(SEED_SIZE, PROGRAM), profile="full", seed="test_stage_backward")
def seed_size() -> Judge:
    """B MUST give the gradients of plain autograd on {stage}.

    torch's own suite runs at width 512 and batch 256, where sums are long and kernels are blocked and threaded.

    Catches: an error that only a long sum or a blocked kernel shows.
    """
    return gradients
