"""Gradient tuples: None in any position, odd sizes and layouts, wrong tuples, tuples put in by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

from gradconform.fixtures.programs import full_immediate, split_deferred
from gradconform.judge import gradients
from gradconform.judge.refusal import refused, refused_or_without_effect, right_or_refused, right_where_claimed
from gradconform.trial.trial import Trial

from .cases import of, ways
from .check import Judge, family

#: How trials are run here: two micro-batches; one on gradients that are there before; one, and another that is refused.
_TWICE = {"full": full_immediate(2), "split": split_deferred(2)}
_ON_PRIOR: dict[str, Any] = {"full": "F0 B0", "split": "F0 I0 W0", "prior_grads": True}
_REFUSED: dict[str, Any] = {"full": "F0 B0 F1 B1!", "split": "F0 I0 W0 F1 I1!", "watch": frozenset({"state"})}


def _fed(cases: dict[str, tuple[str, str]], **fed: Any) -> dict[str, Trial]:
    """Return a full and a split trial per case, which names its stage and the pattern of its output gradients."""
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
    """None among the output gradients ({grads}) MUST mean no gradient there, or be refused if unclaimed, on {stage}.

    Pipelines send None for outputs the next stage does not use; plain autograd refuses None for a non-scalar, so an
    implementation may refuse, but not guess. Who claims none_output_grad has to give it that meaning, and must not
    refuse; who refuses must leave nothing behind. What None means for a 0-d output is grad_tuple.none_scalar's.

    Catches: gradients paired with the wrong output after a None is filtered out, None read as ones, zip truncation.
    """
    return partial(right_or_refused, unless="none_output_grad")


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
    """Output gradients that require a gradient MUST give the gradients that others give, without a history, on {stage}.

    The stage behind may hand over what it has computed with grad mode on. Where an operation passes its gradient on as
    it is, what arrives at a parameter or an input is the caller's own tensor.

    Catches: the output gradient itself stored as ``.grad`` or returned, a backward that makes a graph of itself.
    """
    return gradients


@family("grad_tuple.none_scalar", ways("five-outputs", output_grads="none:0", **_ON_PRIOR))
def none_scalar() -> Judge:
    """None for a 0-d output MUST mean that no gradient flows there where none_output_grad is claimed, on {stage}.

    Plain autograd reads None for a 0-d tensor as 1, so nobody is asked for this, nor probed, who does not claim it.

    Catches: None read as 1 in an implementation that means "no gradient".
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
    """Every output gradient MUST reach its own output, in {program} on {stage}.

    Outputs of different sizes and scales make a swap visible in shape or value.

    Catches: a reversed tuple, the second output dropped, one gradient used for all.
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
    """Output gradients in any memory layout ({grads}) MUST give the gradients of plain autograd, in {program}.

    What a receive buffer or a reshape hands over need not be contiguous; a sum's gradient is expanded, strides 0.

    Catches: a gradient read or written through its storage, an in-place change that an expanded tensor refuses.
    """
    return gradients


@family("grad_tuple.dict_order", ways("dict-output", output_grads="reordered", **_TWICE))
def dict_order() -> Judge:
    """Output gradients in a dict MUST go to the outputs of their keys, in whatever order they come, in {program}.

    The next stage names its inputs in an order of its own.

    Catches: a dict paired by order.
    """
    return gradients


@family("grad_tuple.nonfinite", _fed({"nan": ("mlp", "nan"), "inf": ("mlp", "inf")}))
def nonfinite() -> Judge:
    """NaN and inf in an output gradient ({grads}) MUST reach exactly the elements that plain autograd's reach.

    Loss scaling looks for inf in gradients to skip a step; replacing or spreading it hides the overflow.

    Catches: NaN replaced, inf clipped, a non-finite value that spreads to a whole tensor.
    """
    return gradients


_WRONG = {name: ("two-outputs", name) for name in ("short", "shape", "broadcast", "number", "structure")}


@family(
    "grad_tuple.wrong",
    _fed(_WRONG, **_REFUSED),
    seed={"short-split": "test_stage_backward_weight_grad_validation"},
)
def wrong() -> Judge:
    """Output gradients that fit no output ({grads}) MUST raise and leave nothing changed, in {program}.

    A wrong length, shape or structure is a mistake somewhere else in the pipeline; going on with it trains on garbage.

    Catches: truncation by zip, broadcasting a wrong shape, parameter gradients half written before the error.
    """
    return refused


@family("grad_tuple.absent", ways("mlp", output_grads="absent", **_REFUSED), level="SHOULD")
def absent() -> Judge:
    """No output gradients at all, for an output that is no 0-d loss, SHOULD raise or change nothing, in {program}.

    Only a 0-d loss has a gradient that goes without saying; plain autograd refuses anything else.

    Catches: a forgotten gradient, or a loss that was not reduced, read as ones.
    """
    return refused_or_without_effect


@family("grad_tuple.too_long", ways("two-outputs", output_grads="long", **_REFUSED), level="SHOULD")
def too_long() -> Judge:
    """More output gradients than outputs SHOULD raise and leave nothing changed, in {program}.

    Plain autograd accepts them in some forms, so this is no MUST; the surplus is somebody's lost gradient.

    Catches: a surplus gradient dropped without a word.
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
    """W from a gradient tuple put into its context by hand MUST give what autograd gives from those edges, on {stage}.

    torch's weight context holds one tuple of gradients per node, with None where a slot got none. torch's own test of
    this asserts nothing; here the values are compared.

    Catches: a tuple of several read as its first, None that shifts the slots behind it, an all-None tuple that raises.
    """
    return gradients
