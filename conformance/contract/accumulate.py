"""Accumulation: parameter gradients over micro-batches and steps, compared after every action."""

from __future__ import annotations

from gradconform.fixtures import programs
from gradconform.judge import gradients
from gradconform.judge.state import accumulates_in_place

from .cases import of, of_two, ways
from .check import Judge, family

_STAGES = (
    "lstm", "tied-parallel", "batch-norm", "frozen-layer", "dropout", "two-outputs", "fused-qkv", "checkpoint",
    "checkpoint-batch-norm",
)  # fmt: skip


@family(
    "accumulate.iterations",
    {
        **{f"full-{n}": of("mlp", programs.full_immediate(n)) for n in (1, 3, 10)},
        **{f"split-{n}": of("mlp", programs.split_immediate(n)) for n in (1, 3, 10)},
        "split-10-deferred": of("mlp", programs.split_deferred(10), loss=True),
    },
    seed={"split-10": "test_stage_backward_weight_multiple_iters"},
)
def iterations() -> Judge:
    """Parameter gradients MUST be the sum over the micro-batches so far, after every action of {program}.

    A final sum cannot see one micro-batch doubled and another dropped; the sum after every action can.

    Catches: overwriting instead of accumulating, the first or last micro-batch only, a mistake after the k-th call.
    """
    return gradients


@family(
    "accumulate.in_flight",
    ways("mlp", full=programs.full_all_forwards_first(2), split=programs.split_all_forwards_first(2)),
)
def in_flight() -> Judge:
    """Two micro-batches in flight MUST each get their own gradients, after every action of {program}.

    Every schedule but the plainest has several in flight, so this belongs to the core that no claim can withhold.

    Catches: a context kept for one micro-batch at a time.
    """
    return gradients


@family(
    "accumulate.stage",
    {
        name: (of(name, programs.full_all_forwards_first(3)), of(name, programs.split_interleaved(3)))
        for name in _STAGES
    },
)
def stages() -> Judge:
    """Three micro-batches MUST accumulate, after every action, on {stage}, full and split.

    State that an implementation keeps per stage rather than per micro-batch shows only where several are in flight.

    Catches: a context, mask or buffer of one micro-batch used for another.
    """
    return gradients


@family(
    "accumulate.reentrant",
    {
        "full": of("checkpoint-reentrant", programs.full_all_forwards_first(3)),
        "prior": of("checkpoint-reentrant", programs.full_immediate(2), prior_grads=True),
    },
)
def reentrant() -> Judge:
    """Parameter gradients MUST be the sum over the micro-batches so far, in {program} on {stage}.

    The backward inside accumulates by itself, into whatever ``.grad`` then holds.

    Catches: gradients set aside while a backward runs, so that what it accumulates by itself is lost.
    """
    return gradients


_ORDERS = {
    "full-immediate": programs.full_immediate(3),
    "full-all-forwards-first": programs.full_all_forwards_first(3),
    "full-reversed": programs.full_reversed(3),
    "split-immediate": programs.split_immediate(3),
    "split-deferred": programs.split_deferred(3),
    "split-reversed": programs.split_reversed(3),
    "split-all-forwards-first": programs.split_all_forwards_first(3),
    "split-input-reversed": programs.split_input_reversed(3),
    "split-interleaved": programs.split_interleaved(3),
    "mixed": programs.mixed(4),
    "mixed-weight-last": "F0 F1 F2 B2 I1 I0 W1 F3 B3 W0",
}


@family(
    "accumulate.order",
    {case: (of("mlp", program), of("two-outputs", program)) for case, program in _ORDERS.items()},
)
def orders() -> Judge:
    """Each action MUST use its own micro-batch's context in the order {program}.

    Every schedule orders F, B, I and W in its own way; an implementation is asked for the orders that it claims.

    Catches: two W swapped, contexts taken first-in-first-out whatever is asked, only the newest context kept.
    """
    return gradients


@family(
    "accumulate.prior",
    {
        "full": of("mlp", programs.full_immediate(2), prior_grads=True),
        "split": of("mlp", programs.split_deferred(2), prior_grads=True),
        "frozen": of("frozen-layer", programs.split_deferred(2), prior_grads=True),
        "tied": of("tied-parallel", programs.split_deferred(2), prior_grads=True),
    },
)
def prior() -> Judge:
    """Gradients that are there before the first micro-batch MUST be added to, in {program} on {stage}.

    Gradient accumulation over several pipeline steps leaves gradients in place (TransformerEngine #2142, #3437).

    Catches: a first micro-batch that assigns instead of adding.
    """
    return gradients


@family(
    "accumulate.steps",
    {
        f"{way}-{between}": trial
        for between, zero in {"no-zero": "", "zero-none": "zero_none ", "zero-fill": "zero_fill "}.items()
        for way, trial in ways(
            "mlp",
            full=f"F0 B0 F1 B1 finish {zero}F2 B2 F3 B3",
            split=f"F0 I0 F1 I1 W0 W1 finish {zero}F2 I2 W2 F3 I3 W3",
        ).items()
    },
)
def steps() -> Judge:
    """Two steps on one stage MUST give what plain autograd gives, in {program}.

    Between the steps an optimizer clears gradients, by None or by zeros, or leaves them.

    Catches: state carried from one step into the next, a gradient written behind zero_grad's back.
    """
    return gradients


@family(
    "accumulate.two_stages",
    {
        "full": of_two("mlp", "two-outputs", "F0 1F0 F1 1F1 B0 1B1 1B0 B1"),
        "split": of_two("mlp", "two-outputs", "F0 1F0 I0 1I0 W0 1W0 F1 I1 1F1 1I1 1W1 W1"),
        "full-crossed": of_two("mlp", "mlp", "F0 1F0 1B0 B0 F1 1F1 B1 1B1"),
        "split-crossed": of_two("mlp", "mlp", "F0 1F0 I0 1I0 1W0 W0"),
    },
)
def two_stages() -> Judge:
    """Two stages alive on one implementation MUST NOT disturb each other, in {program}.

    Interleaved and V schedules run several stages on one rank.

    Catches: a process-wide queue that hands one stage's work to the other.
    """
    return gradients


@family(
    "accumulate.reused_input",
    {
        "full": of("mlp", programs.full_immediate(3), same_args=True),
        "split": of("mlp", programs.split_deferred(3), same_args=True),
        "two-inputs-split": of("two-inputs", programs.split_immediate(2), same_args=True),
        "mixed": of("mlp", "F0 I0 F1 B1 W0", same_args=True),
    },
)
def reused_input() -> Judge:
    """An input tensor used by several micro-batches MUST get each one's own gradient, in {program}.

    The input's .grad accumulates; returning it returns the running sum (pytorch #164329).

    Catches: the running sum handed on as the gradient of the latest micro-batch.
    """
    return gradients


@family(
    "accumulate.in_place",
    ways("mlp", full=programs.full_immediate(3), split=programs.split_deferred(3), watch=frozenset({"state"})),
    level="SHOULD",
    needs=("grads_on_param",),
)
def in_place() -> Judge:
    """A parameter's .grad SHOULD stay in the same storage while gradients are added to it, in {program}.

    Plain autograd adds in place from the second backward on; data-parallel wrappers keep views into their buckets.

    Catches: a new tensor per micro-batch, which silently leaves the bucket behind.
    """
    return accumulates_in_place
