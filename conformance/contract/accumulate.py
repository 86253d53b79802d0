"""Accumulation: parameter gradients over micro-batches and steps, compared after every action.

A check runs only if the target claims the order of its program.
"""

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
    """Parameter gradients MUST equal the sum over all micro-batches so far, after every action of program {program}.

    A final sum hides one micro-batch counted twice and another one dropped; the sum after every action shows both.

    Catches: overwritten gradients, only the first or last micro-batch counted, or a mistake that starts after several
    calls.
    """
    return gradients


@family(
    "accumulate.in_flight",
    ways("mlp", full=programs.full_all_forwards_first(2), split=programs.split_all_forwards_first(2)),
)
def in_flight() -> Judge:
    """Each of two micro-batches in flight MUST get its own gradients, after every action of program {program}.

    Every schedule except the simplest one keeps several micro-batches in flight, so mixed gradients train a wrong
    model.

    Catches: an implementation that keeps the context of only one micro-batch.
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
    """Three micro-batches in flight MUST accumulate the right gradients after every action, full and split, on {stage}.

    State kept per stage instead of per micro-batch gives wrong gradients only when several micro-batches are in flight.

    Catches: a context, mask or buffer of one micro-batch that is used for another one.
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
    """Parameter gradients MUST equal the sum over all micro-batches so far, in program {program} on {stage}.

    The inner backward adds directly to ``.grad``; a run that loses this part trains a wrong model without an error.

    Catches: gradients that are set aside during a backward, so that the part of the inner backward is lost.
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
    """Each action MUST use the context of its own micro-batch, in program {program}.

    Every schedule orders F, B, I and W differently, and a swapped context gives the gradient of another micro-batch.

    Catches: two swapped W, contexts always used first in, first out, or only the newest context kept.
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
    """An implementation MUST add to gradients that exist before the first micro-batch, in program {program} on {stage}.

    Gradient accumulation over several pipeline steps otherwise loses all earlier steps (TransformerEngine #2142,
    #3437).

    Catches: a first micro-batch that assigns its gradient instead of adding it.
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
    """Two steps on one stage MUST give the gradients of plain autograd, in program {program}.

    An optimizer sets gradients to None or zero between steps, or keeps them; stale state corrupts the second step.

    Catches: state that is carried from one step to the next, or a stored gradient that zero_grad does not reach.
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
    """Two open stages on one implementation MUST NOT disturb each other, in program {program}.

    Interleaved and V schedules run several stages on one rank, and each would train on gradients of the other.

    Catches: a process-wide queue that gives the work of one stage to the other.
    """
    return gradients


_PAIRS = {
    "full": "F0 1F0 B0 1B0 F1 1F1 B1 1B1",
    "split": "F0 1F0 I0 1I0 W0 1W0 F1 1F1 I1 1I1 W1 1W1",
    "mixed": "F0 1F0 F1 1F1 B0 1B0 I1 1I1 W1 1W1",
}


@family(
    "accumulate.at_once",
    {way: of_two("meeting", "meeting", program, at_once=True) for way, program in _PAIRS.items()},
    since="1.1",
)
def at_once() -> Judge:
    """Two stages that run in two threads at once MUST NOT disturb each other, in program {program}.

    A runtime may drive each stage, or each device, from its own thread.

    Catches: a current stage, micro-batch or list of gradients that is kept for the whole process during an action.
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
    """Micro-batches that share an input tensor MUST each get their own gradient of it, in program {program}.

    The input's .grad accumulates, so returning it sends a running sum to the previous stage (pytorch #164329).

    Catches: the running sum returned as the gradient of the latest micro-batch.
    """
    return gradients


@family(
    "accumulate.in_place",
    ways("mlp", full=programs.full_immediate(3), split=programs.split_deferred(3), watch=frozenset({"state"})),
    level="SHOULD",
    needs=("grads_on_param",),
)
def in_place() -> Judge:
    """A parameter's .grad SHOULD keep its storage while gradients are added to it, in program {program}.

    Plain autograd adds in place from the second backward on; otherwise a data-parallel bucket reduces an old value.

    Catches: a new .grad tensor for each micro-batch, which silently disconnects the bucket.
    """
    return accumulates_in_place
