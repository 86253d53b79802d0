"""Gradient tuples: None entries, unusual sizes and layouts, wrong tuples, and hand-made tuples in a weight context.

``grad_tuple.none_scalar`` covers None for a 0-d output; ``grad_tuple.none`` covers every other output.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gradconform.fixtures.programs import full_immediate, split_deferred
from gradconform.fixtures.stages.endings import ENDINGS, ROOT
from gradconform.judge import gradients
from gradconform.judge.refusal import refused, refused_or_without_effect, right_or_refused, right_where_claimed
from gradconform.trial.trial import Trial

from .cases import of, over, ways
from .check import Judge, family

#: The programs of these trials: two micro-batches; one on existing gradients; one, and then one that is refused.
_TWICE = {"full": full_immediate(2), "split": split_deferred(2)}
_ON_PRIOR: dict[str, Any] = {"full": "F0 B0", "split": "F0 I0 W0", "prior_grads": True}
_REFUSED: dict[str, Any] = {"full": "F0 B0 F1 B1!", "split": "F0 I0 W0 F1 I1!", "watch": frozenset({"state"})}


def _fed(cases: dict[str, tuple[str, str]], **fed: Any) -> dict[str, Trial]:
    """Return a full and a split trial per case, which has its stage's name and the pattern of its output gradients."""
    return {
        f"{case}-{way}": trial
        for case, (name, pattern) in cases.items()
        for way, trial in ways(name, output_grads=pattern, **{**_TWICE, **fed}).items()
    }


@family(
    "grad_tuple.none",
    _fed(
        {
            "first": ("three-outputs", "none:0"),
            "middle": ("three-outputs", "none:1"),
            "last": ("three-outputs", "none:2"),
            "all-but-last": ("three-outputs", "only:2"),
            "lone": ("mlp", "none:all"),
            "all": ("three-outputs", "none:all"),
            "chunk": ("output-chunks", "none:0"),
            "dict": ("dict-output", "none:1"),
        },
        **_ON_PRIOR,
    ),
    without=("none_output_grad",),
)
def none() -> Judge:
    """{grads} MUST mean no gradient there, or raise and change nothing if unclaimed, on {stage}.

    Pipelines send None for outputs that the next stage does not use; only a target without none_output_grad may refuse
    it.

    Catches: gradients paired with the wrong output after None entries were removed, None read as ones, or truncation by
    zip.
    """
    return partial(right_or_refused, unless="none_output_grad")


_ALONE = _fed(
    {
        "first": ("three-outputs", "none:0"),
        "last": ("three-outputs", "none:2"),
        "all-but-last": ("three-outputs", "only:2"),
    }
)


@family("grad_tuple.none_alone", _ALONE, without=("none_output_grad",), since="1.1")
@family(
    "grad_tuple.none_alone",
    {f"root-{way}": over((ROOT,), program, output_grads="none:1")[ROOT.name] for way, program in _TWICE.items()},
    without=("none_output_grad",),
    needs=("none_as_zeros=False",),
    since="1.1",
)
def none_without_prior() -> Judge:
    """{grads} MUST leave unreached parameters without a gradient, or raise if unclaimed, on {stage}.

    An optimizer skips a parameter without a gradient, but decays one with zeros, and zeros times infinity are NaN.

    Catches: zeros in place of None, in the backward or afterwards.
    """
    return partial(right_or_refused, unless="none_output_grad")


@family(
    "grad_tuple.expanded",
    {
        f"{group}-{way}": (
            *over(last, program, output_grads="layout:expanded").values(),
            *over(summed, program).values(),
        )
        for group, (last, summed) in ENDINGS.items()
        for way, program in _TWICE.items()
    },
    since="1.1",
)
def expanded() -> Judge:
    """Expanded gradients MUST give plain autograd's gradients in every kind of layer, in program {program}.

    The gradient of a sum has strides of 0, and arrives from the next stage or inside a stage.

    Catches: a kernel or custom Function that gives its result the strides of the gradient, or reads only its memory.
    """
    return gradients


@family(
    "grad_tuple.tracked",
    _fed(
        {
            "mlp": ("mlp", "normal"),
            "bare-bias": ("bare-bias", "normal"),
            "added-parameter": ("added-parameter", "normal"),
        },
        tracked_grads=True,
    ),
)
def tracked() -> Judge:
    """Output gradients that require grad MUST give the usual gradients, without graph history, on {stage}.

    The next stage may compute with grad mode on, and its tensor may arrive unchanged at a parameter or an input.

    Catches: the output gradient itself stored as ``.grad`` or returned, or a backward that records a graph of itself.
    """
    return gradients


@family("grad_tuple.none_scalar", ways("five-outputs", output_grads="none:0", **_ON_PRIOR))
def none_scalar() -> Judge:
    """None for a 0-d output MUST mean no gradient there if none_output_grad is claimed, on {stage}.

    Plain autograd reads None for a 0-d output as 1, so the check and the probe skip targets without that claim.

    Catches: None read as 1 by an implementation that claims to read it as no gradient.
    """
    return right_where_claimed


@family(
    "grad_tuple.size",
    _fed(
        {
            "one": ("mlp", "normal"),
            "two": ("two-outputs", "normal"),
            "three": ("three-outputs", "normal"),
            "five": ("five-outputs", "normal"),
        }
    ),
)
def size() -> Judge:
    """Every output gradient MUST reach its own output, in program {program} on {stage}.

    A swapped output gradient trains a wrong model; outputs of different sizes and scales make the swap visible.

    Catches: a reversed tuple, a dropped second output, or one gradient that is used for all outputs.
    """
    return gradients


@family(
    "grad_tuple.layout",
    _fed(
        {
            "transposed": ("mlp", "layout:transposed"),
            "strided": ("mlp", "layout:strided"),
            "expanded": ("mlp", "layout:expanded"),
            "zeros": ("mlp", "zeros"),
            "empty": ("empty-batch", "normal"),
            "strided-outputs": ("three-outputs", "layout:strided"),
            "channels-last": ("conv2d", "layout:channels_last"),
        }
    ),
)
def layout() -> Judge:
    """Output gradients in any memory layout ({grads}) MUST give the gradients of plain autograd, in program {program}.

    A receive buffer or a reshape may give a non-contiguous gradient, and the gradient of a sum has strides of 0.

    Catches: a gradient read or written through its storage, or an in-place change that fails on an expanded tensor.
    """
    return gradients


@family("grad_tuple.dict_order", ways("dict-output", output_grads="reordered", **_TWICE))
def dict_order() -> Judge:
    """Output gradients in a dict MUST reach the outputs with their keys, in any order, in program {program}.

    The next stage names its inputs in its own order, so pairing by position swaps gradients.

    Catches: a dict that is paired by position instead of by key.
    """
    return gradients


@family("grad_tuple.nonfinite", _fed({"nan": ("mlp", "nan"), "inf": ("mlp", "inf")}))
def nonfinite() -> Judge:
    """NaN or inf in an output gradient ({grads}) MUST reach exactly the elements it reaches under plain autograd.

    Loss scaling skips a step when it finds inf; an implementation that replaces or spreads inf hides the overflow.

    Catches: a replaced NaN, a clipped inf, or a non-finite value that spreads to a whole tensor.
    """
    return gradients


_WRONG = {name: ("two-outputs", name) for name in ("short", "shape", "broadcast", "number", "structure")}


@family(
    "grad_tuple.wrong",
    _fed(_WRONG, **_REFUSED),
    seed={"short-split": "test_stage_backward_weight_grad_validation"},
)
def wrong() -> Judge:
    """Output gradients that fit no output ({grads}) MUST raise and change nothing, in program {program}.

    A wrong length, shape or structure is a mistake elsewhere in the pipeline; a run that continues trains on garbage.

    Catches: truncation by zip, a wrong shape that is broadcast, or parameter gradients half written before the error.
    """
    return refused


@family("grad_tuple.absent", ways("mlp", output_grads="absent", **_REFUSED), level="SHOULD")
def absent() -> Judge:
    """B or I without output gradients SHOULD raise or change nothing if no 0-d loss implies them, in program {program}.

    Only a 0-d loss has an implied gradient; plain autograd refuses every other output.

    Catches: a forgotten gradient, or a loss that was not reduced, read as ones.
    """
    return refused_or_without_effect


@family("grad_tuple.too_long", ways("two-outputs", output_grads="long", **_REFUSED), level="SHOULD")
def too_long() -> Judge:
    """More output gradients than outputs SHOULD raise and change nothing, in program {program}.

    An extra gradient is the lost gradient of another output; plain autograd accepts some forms, so this is no MUST.

    Catches: an extra gradient that is dropped silently.
    """
    return refused


_BY_HAND = {
    "one": ("mlp", (True,)),
    "one-none": ("mlp", (False,)),
    "two": ("output-chunks", (True, True)),
    "two-first-none": ("output-chunks", (False, True)),
    "two-last-none": ("output-chunks", (True, False)),
    "two-all-none": ("output-chunks", (False, False)),
    "three": ("output-unbound", (True, True, True)),
    "three-first-none": ("output-unbound", (False, True, True)),
    "three-middle-none": ("output-unbound", (True, False, True)),
    "three-last-none": ("output-unbound", (True, True, False)),
    "three-all-none": ("output-unbound", (False, False, False)),
}


@family(
    "grad_tuple.by_hand",
    {
        case: of(name, "F0 G0 W0 F1 G1 W1", hand_grads=slots, prior_grads="all-none" not in case)
        for case, (name, slots) in _BY_HAND.items()
    },
    seed="test_stage_backward_weight_grad_validation",
)
def by_hand() -> Judge:
    """W from a hand-made gradient tuple MUST give autograd's gradients from the same edges, on {stage}.

    torch's weight context holds one tuple per node, with None for empty slots, and torch's own test compares no values.

    Catches: a tuple read as its first entry, None that shifts the slots after it, or an all-None tuple that raises.
    """
    return gradients
