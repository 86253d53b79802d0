"""Errors: what raises in a micro-batch's backward is heard, and harms no other micro-batch."""

from __future__ import annotations

from gradconform.judge.errors import left_whole, right_afterwards, surfaces

from .cases import ways
from .check import Judge, family

_TRIALS = ways(
    ("raising-hook", "raising-function", "raising-saved-tensor"),
    full="F0 B0 F1 F2 B1! B2 F3 B3",
    split="F0 I0 W0 F1 F2 I1! W1! I2 W2 F3 I3 W3",
    raising=(1,),
)
_NEEDS = ("weight_when=weight",)  # what a finish does later cannot be told from what an error left


@family("errors.surface", _TRIALS)
def surface() -> Judge:
    """What is raised in a backward MUST be raised by B, or by I or W, itself or as a cause, in {program} on {stage}.

    A hook that finds a gradient of NaN, a custom function that is out of memory, saved activations that cannot be
    fetched again: a run that goes on trains on what is missing. Who catches it decides by its type, and who reads the
    traceback by its place: another exception may stand for it only where it was raised from it, or while handling it.

    Catches: an exception that is logged and swallowed, or replaced by one that hides it.
    """
    return surfaces


@family("errors.left", _TRIALS, needs=_NEEDS)
def left() -> Judge:
    """After an error each parameter MUST have all of its gradient of that micro-batch, or nothing, in {program}.

    How far autograd came when it stopped is nobody's rule. What it did reach has its gradient once; whoever catches
    the error clears it, or goes on without that micro-batch.

    Catches: half a gradient, one that is added twice, gradients cleared by an error.
    """
    return left_whole


@family("errors.next", _TRIALS, needs=_NEEDS)
def following() -> Judge:
    """The micro-batches after one that raised MUST each add their own gradients to what stood, in {program}.

    One of them is in flight when it raises, and one comes later; neither is at fault.

    Catches: contexts, hooks or flags that an error leaves behind.
    """
    return right_afterwards
