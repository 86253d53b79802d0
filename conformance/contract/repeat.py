"""Repeats: results that could depend on memory addresses or set order, built anew thirty times."""

from __future__ import annotations

from gradconform.judge import gradients
from gradconform.judge.state import bit_equal

from .cases import BUILDS, of, over
from .check import Judge, family

#: Stages whose parameters meet the input's graph at several places: an implementation keeps those places in a set.
_STAGES = (
    "tied-parallel", "tied-adjacent", "tied-apart", "tied-transposed", "looped-block", "weight-norm", "chunked-weight",
    "derived-weight-twice", "five-outputs", "residual",
)  # fmt: skip


@family("repeat.graph_builds", over(_STAGES, BUILDS))
def graph_builds() -> Judge:
    """I and W MUST be right on each of 30 graphs built anew, on {stage}.

    Graph nodes hash by address: the order of a set of them, and with it a result, can change from graph to graph. All
    thirty are alive at once, each at its own place in memory.

    Catches: a gradient that is wrong in one of five graph builds.
    """
    return gradients


@family(
    "repeat.bit_equal",
    {
        "full": of("mlp", "F0 F1 B0 B1", repeats=3),
        "split": of("mlp", "F0 F1 I0 I1 W1 W0", repeats=3),
        "tied-adjacent-split": of("tied-adjacent", "F0 F1 I0 I1 W1 W0", repeats=3),
        "attention-split": of("transformer-layer", "F0 I0 W0", repeats=3),
    },
    level="SHOULD",
)
def repeats() -> Judge:
    """The same trial run again SHOULD give the same bits where plain autograd does, in {program} on {stage}.

    Accuracy apart: a run that cannot be repeated cannot be debugged.

    Catches: sums whose order depends on addresses.
    """
    return bit_equal
