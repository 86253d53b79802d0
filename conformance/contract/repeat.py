"""Repeats: results that could depend on memory addresses or set order, on thirty graphs or in repeated runs."""

from __future__ import annotations

from gradconform.judge import gradients
from gradconform.judge.state import bit_equal

from .cases import BUILDS, of, over
from .check import Judge, family

#: Stages whose parameters join the input's graph at several places: an implementation keeps those places in a set.
_STAGES = (
    "tied-parallel", "tied-adjacent", "tied-apart", "tied-transposed", "looped-block", "weight-norm", "chunked-weight",
    "derived-weight-twice", "five-outputs", "residual",
)  # fmt: skip


@family("repeat.graph_builds", over(_STAGES, BUILDS))
def graph_builds() -> Judge:
    """I and W MUST be right on each of 30 graphs that exist together, on {stage}.

    Graph nodes hash by address, so the order of a set of nodes, and with it a result, can change between graphs.

    Catches: a gradient that is wrong in one of five graphs.
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
    """A repeated trial SHOULD give the same bits if plain autograd does, in program {program} on {stage}.

    A run that cannot be repeated exactly is hard to debug, even if it is accurate.

    Catches: sums whose order depends on memory addresses.
    """
    return bit_equal
