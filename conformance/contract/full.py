"""Full backward: B compared with plain autograd, on every stage of the zoo."""

from __future__ import annotations

from gradconform.fixtures.programs import full_all_forwards_first, full_immediate
from gradconform.judge import gradients
from gradconform.judge.bias import BIAS

from .cases import (
    FULL_LOSSES,
    LATER_STAGES,
    NEWEST_STAGES,
    OLD_FULL_LOSSES,
    RARER_STAGES,
    REENTRANT,
    SEED_SIZE,
    USUAL_STAGES,
    draws,
    of,
    over,
)
from .check import Judge, family

PROGRAM = full_immediate(2)


@family("full.gradients", over(NEWEST_STAGES, PROGRAM), since="1.3")
@family("full.gradients", over(LATER_STAGES, PROGRAM), since="1.1")
@family("full.gradients", over(RARER_STAGES, PROGRAM), profile="full")
@family("full.gradients", over((*USUAL_STAGES, *REENTRANT), PROGRAM))
def gradient_driven() -> Judge:
    """B MUST return plain autograd's input gradients and accumulate its parameter gradients, on {stage}.

    A stage sends its input gradients to the previous stage, so one wrong value spreads to all earlier stages.

    Catches: a gradient that is in the wrong slot, dropped, doubled, or of another shape, dtype or device.
    """
    return gradients


@family("full.loss", over(OLD_FULL_LOSSES, PROGRAM, loss=True), until="1.1")
@family("full.loss", over((*FULL_LOSSES, *REENTRANT), PROGRAM, loss=True), seed={"mlp": "test_stage_backward"})
def loss_driven() -> Judge:
    """From a loss, B MUST give plain autograd's input and parameter gradients, on {stage}.

    The last stage starts from a 0-d loss without output gradients, which is another code path than in other stages.

    Catches: a loss gradient other than 1, a loss divided twice, or a lost gradient of a parameter that only the loss
    uses.
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
    """B's errors from {case} MUST average out to zero and spread no wider than rounding, on {stage}.

    In bfloat16 or float16, a factor on all elements looks like rounding in each element, but it does not average out.

    Catches: gradients scaled by one percent (such as a mean over one row too few), truncated, or rounded through a
    narrower dtype.
    """
    return gradients


@family("full.seed_size", over(SEED_SIZE, PROGRAM), profile="full", seed="test_stage_backward")
def seed_size() -> Judge:
    """B MUST give the gradients of plain autograd, on {stage}.

    torch's own tests use width 512 and batch 256, where sums are long and kernels are blocked and threaded.

    Catches: an error that only a long sum or a blocked kernel shows.
    """
    return gradients
