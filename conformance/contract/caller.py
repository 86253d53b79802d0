"""Caller: memory that the caller owns, and its writes between the actions of a micro-batch."""

from __future__ import annotations

from typing import Any

from gradconform.fixtures.programs import full_immediate, split_deferred
from gradconform.judge import gradients
from gradconform.judge.between import outputs_stay, right_or_raised, stage_freed
from gradconform.trial.trial import Trial

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


_BETWEEN = {
    "output": ("no-parameters", "mlp", "output-view", "write0"),
    "argument": ("mlp", "custom-linear", "refill0"),
    "weight": ("mlp", "layer-norm", "step"),
    "data": ("mlp", "residual", "replace"),  # stages whose backward keeps the old memory
    "frozen": ("mlp", "layer-norm", "freeze0 freeze1"),
}
_IN_FLIGHT = ("weight_when=weight", "input_pass_touches_params=False")
#: W does not read an output, and a split may choose at I whether a parameter takes part.
_LEFT_OUT = {("output", "weight"), ("frozen", "input")}


_WAYS = {"full": "F0 {} B0!", "input": "F0 {} I0!", "weight": "F0 I0 {} W0!"}
_RARER = {
    ("argument", "input"), ("output", "input"), ("data", "input"), ("frozen", "full"), ("frozen", "weight"),
}  # fmt: skip


def _between(*, rarer: bool) -> dict[str, tuple[Trial, ...]]:
    """Return the trials of writes by case and way, for profile standard or for full alone."""
    return {
        f"{case}-{way}": tuple(of(name, program.format(word)) for name in names)
        for case, (*names, word) in _BETWEEN.items()
        for way, program in _WAYS.items()
        if (case, way) not in _LEFT_OUT and ((case, way) in _RARER) is rarer
    }


@family("caller.between", _between(rarer=False), needs=_IN_FLIGHT, since="1.1")
@family("caller.between", _between(rarer=True), needs=_IN_FLIGHT, profile="full", since="1.1")
def between() -> Judge:
    """After a change of the caller in flight, an action MUST raise or give plain autograd's gradients, in {program}.

    Autograd counts writes, keeps replaced memory and reads requires_grad late; training on other values shows no error.

    Catches: saved tensors read around autograd's count of writes, a forward that runs again on other values, or a list
    of frozen parameters from before.
    """
    return right_or_raised
