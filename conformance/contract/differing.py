"""Differing: micro-batches of one session that use other parameters, or have other arguments or gradients."""

from __future__ import annotations

from gradconform.fixtures.programs import full_all_forwards_first, full_immediate, split_all_forwards_first
from gradconform.judge import gradients
from gradconform.trial.trial import Trial

from .cases import of, ways
from .check import Judge, family

#: Each way of a stage is taken twice, so that what the first micro-batch left meets a way that it knows, and a new one.
_ROUTED = {
    "full": full_all_forwards_first(4),
    "split": split_all_forwards_first(4),
    "mixed": "F0 I0 W0 F1 B1 zero_none F2 F3 I3 B2 W3",
}
_STAGES = ("experts", "rows", "order", "optional", "count", "slice")
_USES = {
    f"{name}-{way}": of(f"routed-{name}", program)
    for name in _STAGES
    for way, program in _ROUTED.items()
    if way != "mixed" or name == "experts"
}


@family("differing.use", _USES, since="1.1")
def use() -> Judge:
    """Each micro-batch MUST give gradients to the parameters that it used, in program {program} on {stage}.

    Experts, skipped layers and early exits use other parameters for other data, in graphs that look the same.

    Catches: a plan, order or list of used parameters that is kept from the first micro-batch, by operations or shapes.
    """
    return gradients


_IN_TURN = {"full": full_all_forwards_first(3), "split": split_all_forwards_first(3)}


def _in_turn(*names: str) -> dict[str, Trial]:
    """Return a full and a split trial of stages whose arguments differ in turn, by what differs."""
    return {f"{name}-{way}": trial for name in names for way, trial in ways(f"{name}-in-turn", **_IN_TURN).items()}


@family("differing.arguments", _in_turn("fixed", "dtype", "layout"), since="1.1")
@family("differing.arguments", _in_turn("rows"), needs=("ragged",), since="1.1")
def arguments() -> Judge:
    """Micro-batches whose arguments differ MUST get their own gradients, in program {program} on {stage}.

    The last micro-batch may have no rows, a frozen tower sends arguments without gradients, and buffers change dtype.

    Catches: a shape, dtype, layout or need of a gradient that is kept from the first micro-batch.
    """
    return gradients


_PATTERNS = {"none": "none:0|none:1|normal", "layout": "layout:transposed|normal|layout:expanded"}


@family(
    "differing.output_grads",
    {
        f"{case}-{way}": of("three-outputs", program, output_grads=pattern)
        for case, pattern in _PATTERNS.items()
        for way, program in {**_IN_TURN, "mixed": "F0 F1 F2 B0 I1 W1 B2"}.items()
    },
    since="1.1",
)
def output_gradients() -> Judge:
    """Micro-batches with unlike output gradients ({grads}) MUST get their own gradients, in program {program}.

    Whether the next stage uses an output may depend on the data, and so may the memory of its gradient.

    Catches: a list of outputs with gradients, or their strides, kept from the first micro-batch.
    """
    return gradients


@family(
    "differing.loss",
    ways(
        "three-outputs", full=full_immediate(3), split=_IN_TURN["split"], loss=True, output_grads="none:0|none:1|none:2"
    ),
    since="1.1",
)
def losses() -> Judge:
    """Losses that read other outputs in turn MUST give plain autograd's gradients, in program {program} on {stage}.

    Several tasks on one model take turns, and a parameter that one loss leaves without a gradient gets one later.

    Catches: parameters marked as unused, or outputs marked as unread, by the first micro-batch.
    """
    return gradients


_SUMS = ("sparse-then-dense", "dense-then-sparse", "expanded-then-full", "other-tokens")


@family(
    "differing.sums",
    ways(_SUMS, full=full_immediate(4), split=split_all_forwards_first(4)),
    since="1.1",
)
def sums() -> Judge:
    """Unlike gradients MUST add up as under plain autograd, in program {program} on {stage}.

    Micro-batches look a table up at other rows, or multiply by it, and the gradient of a summed gain has strides 0.

    Catches: a gradient that replaces one of another layout, an addition into one element of an expanded gradient, or
    sparse values added without indices.
    """
    return gradients
