"""Caller: memory that the caller owns, and objects that it frees."""

from __future__ import annotations

from typing import Any

from gradconform.fixtures.programs import full_immediate, split_deferred
from gradconform.judge import gradients
from gradconform.judge.between import outputs_stay, stage_freed

from .cases import of, ways
from .check import Judge, family


@family(
    "caller.buffer",
    {"before-weight": of("mlp", "F0 I0 F1 I1 buffer W0 zero_buffer W1")},
    needs=("grads_in_param_grad", "input_pass_touches_params=False"),
    since="1.1",
)
@family(
    "caller.buffer",
    ways("mlp", full="F0 B0 buffer zero_buffer F1 B1 F2 B2", split="F0 I0 W0 buffer zero_buffer F1 I1 W1 F2 I2 W2")
    | {
        "empty": of("mlp", "buffer F0 I0 W0 F1 B1 zero_buffer F2 B2"),
        "tied": of("tied-parallel", "F0 I0 W0 buffer zero_buffer F1 I1 W1 F2 B2"),
    },
    needs=("grads_in_param_grad",),
    since="1.1",
)
def buffer() -> Judge:
    """B or W MUST add to the caller's flat buffer, of which .grad is a view, in program {program}.

    Data-parallel wrappers reduce and zero the buffer and never look at .grad, so a new tensor there is never reduced.

    Catches: a sum in a new tensor, or a gradient that replaces zeros.
    """
    return gradients


_OUTPUTS: dict[str, Any] = {"watch": frozenset({"outputs"})}


@family(
    "caller.outputs",
    ways(("mlp", "two-outputs"), full=full_immediate(3), split=split_deferred(3), **_OUTPUTS),
    since="1.1",
)
def outputs() -> Judge:
    """A returned output MUST keep its values until the end, in program {program} on {stage}.

    The caller still sends the output, logs it or computes a metric from it after the backward.

    Catches: an output that the backward frees, writes over or scales, or a static buffer for all outputs.
    """
    return outputs_stay


@family(
    "caller.freed",
    ways("mlp", full="F0 B0 finish close", split="F0 I0 W0 finish close", watch=frozenset({"stage"})),
    level="SHOULD",
    since="1.1",
)
def freed() -> Judge:
    """A closed session SHOULD keep neither the module nor a parameter alive, in program {program} on {stage}.

    A process that builds one model after another runs out of memory.

    Catches: a registry of modules, a cache by parameter, or a hook that is never removed.
    """
    return stage_freed
