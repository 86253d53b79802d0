"""Errors: an exception in one micro-batch's backward reaches the caller and harms no other micro-batch."""

from __future__ import annotations

from typing import Any

from gradconform.judge import gradients
from gradconform.judge.errors import left_whole, right_afterwards, surfaces

from .cases import ways
from .check import Judge, family

_TRIALS = ways(
    ("raising-hook", "raising-function", "raising-saved-tensor"),
    full="F0 B0 F1 F2 B1! B2 F3 B3",
    split="F0 I0 W0 F1 F2 I1! W1! I2 W2 F3 I3 W3",
    raising=(1,),
)
_NEEDS = ("weight_when=weight",)  # a finish could hide the state that the error left


_RETRIED: dict[str, Any] = {
    "full": "F0 B0 F1 F2 B1! F1 B1 B2",
    "split": "F0 I0 W0 F1 F2 I1! F1 I1 W1 I2 W2",
}


@family(
    "errors.retry",
    {
        f"{pattern}-{way}": trial
        for pattern in ("short", "shape")
        for way, trial in ways("two-outputs", output_grads=pattern, **_RETRIED).items()
    },
    needs=_NEEDS,
    since="1.1",
)
def retried() -> Judge:
    """A micro-batch that runs again after an error MUST give plain autograd's gradients, in program {program}.

    A caller that catches a wrong output gradient runs the micro-batch again, while another one is in flight.

    Catches: a micro-batch marked as done, or half of its work kept, although its backward raised.
    """
    return gradients


@family("errors.surface", _TRIALS)
def surface() -> Judge:
    """A backward's exception MUST reach the caller, itself or chained, in program {program} on {stage}.

    A run that continues after a lost exception (NaN hook, out of memory, lost activations) trains on missing gradients.

    Catches: an exception that is logged and ignored, or replaced by one that hides it.
    """
    return surfaces


@family("errors.left", _TRIALS, needs=_NEEDS)
def left() -> Judge:
    """After an error, each parameter MUST have all of that micro-batch's gradient or none of it, in program {program}.

    Autograd may stop at any point, and a caller that catches the error cannot repair half a gradient.

    Catches: half a gradient, a gradient that is added twice, or gradients that the error clears.
    """
    return left_whole


@family("errors.next", _TRIALS, needs=_NEEDS)
def following() -> Judge:
    """After an error, every other micro-batch MUST add its own gradients to the existing ones, in program {program}.

    One other micro-batch is in flight during the error and another one starts later; both are still trained on.

    Catches: contexts, hooks or flags that an error leaves behind.
    """
    return right_afterwards
