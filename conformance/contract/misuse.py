"""Misuse: it raises or does nothing, never gives a silent wrong number, and leaves the next session right."""

from __future__ import annotations

from functools import partial

from gradconform.judge import gradients

from .cases import of, of_two, ways
from .check import Judge, family

#: The W of micro-batch 0 keeps its graph; that of micro-batch 1 does not.
_AFTER_RETAINED = "F0 I0 W0 F1 I1 W1 W1!"


@family(
    "misuse.weight_twice",
    {
        "mlp": of("mlp", "F0 I0 W0 W0! F1 I1 W1"),
        "tied-parallel": of("tied-parallel", "F0 I0 W0 W0! F1 I1 W1"),
        "later": of("mlp", "F0 I0 F1 I1 W0 W1 W0!"),
    },
)
@family("misuse.weight_twice", {"retained": of("mlp", _AFTER_RETAINED, retained=(0,))}, since="1.1")
@family(
    "misuse.weight_twice",
    {"retained-tied": of("tied-parallel", _AFTER_RETAINED, retained=(0,))},
    profile="full",
    since="1.1",
)
def weight_twice() -> Judge:
    """A second W of one micro-batch MUST raise or add nothing, in program {program}.

    A schedule that lists a W twice would train on a doubled micro-batch.

    Catches: a weight context that can be used twice.
    """
    return gradients


@family(
    "misuse.weight_before_input",
    {"other": of("mlp", "F0 F1 I0 W1! W0 I1 W1")},
    needs=("weight_before_input", "weight_order=any"),  # a queue does not distinguish W1 from the W0 at its head
)
@family("misuse.weight_before_input", {"mlp": of("mlp", "F0 W0! I0 W0")}, needs=("weight_before_input",))
def weight_before_input() -> Judge:
    """W before its micro-batch's I MUST raise or add nothing, in program {program}.

    A W that runs too early would add the gradient of another micro-batch.

    Catches: a W that takes the next queued work, whatever micro-batch the caller named.
    """
    return gradients


@family(
    "misuse.forgotten_weight",
    {"same-step": of("mlp", "F0 I0 F1 I1 W1 finish!")},
    needs=("weight_order=any",),  # a queue may refuse W1 while W0 is ahead of it
)
@family(
    "misuse.forgotten_weight",
    {"next-session": of_two("mlp", "mlp", "F0 I0 finish! close 1F0 1I0 1W0 1finish")},
)
def forgotten_weight() -> Judge:
    """A missing W MUST NOT change another micro-batch or the next session, in program {program}.

    The end of the step may refuse or run deferred work, but that work must reach nothing else (Megatron-DeepSpeed
    #442).

    Catches: a queue whose leftover entry the next W takes.
    """
    return gradients


@family(
    "misuse.next_session",
    {
        "shape-full": of_two("mlp", "mlp", "F0 B0! close 1F0 1B0 1F1 1B1", output_grads="shape"),
        "shape-split": of_two("mlp", "mlp", "F0 I0! close 1F0 1I0 1W0", output_grads="shape"),
        "short-full": of_two("two-outputs", "mlp", "F0 B0! close 1F0 1B0", output_grads="short"),
        "short-split": of_two("two-outputs", "mlp", "F0 F1 I0! close 1F0 1I0 1F1 1I1 1W1 1W0", output_grads="short"),
        "weight-twice": of_two("mlp", "mlp", "F0 I0 W0 W0! close 1F0 1I0 1W0"),
    },
)
def next_session() -> Judge:
    """The next session MUST be right after an error in the previous one, in program {program}.

    A caller catches a failed step, closes its session and starts the next one in the same process.

    Catches: a queue, cache or hook that the error left behind.
    """
    return partial(gradients, lane=1)


@family(
    "misuse.next_microbatch",
    ways("mlp", full="F0 B0 F1 B1! F2 B2", split="F0 I0 F1 I1! W0 F2 I2 W2", output_grads="shape"),
)
def next_microbatch() -> Judge:
    """The other micro-batches of a session MUST be right after an error in one, in program {program}.

    Micro-batches that are in flight when another one fails are still trained on.

    Catches: a context of another micro-batch that the failed one lost or used up.
    """
    return gradients
