"""Steps: changes between backwards over several steps, and sessions that share a module or parameters."""

from __future__ import annotations

from gradconform.judge import gradients
from gradconform.trial.trial import Trial

from .cases import of, of_two, ways
from .check import Judge, family

_FULL, _SPLIT = "F0 F1 B0 B1 finish", "F0 I0 F1 I1 W0 W1 finish"


def _three_steps(word: str, names: tuple[str, ...] = ("mlp",)) -> dict[str, Trial]:
    """Return trials of three steps, each over the same micro-batch numbers, with ``word`` between them."""
    found: dict[str, Trial] = {}
    for name in names:
        trials = ways(name, full=f" {word} ".join([_FULL] * 3), split=f" {word} ".join([_SPLIT] * 3))
        found |= {f"{word}-{way}" if name == "mlp" else f"{word}-{name}-{way}": one for way, one in trials.items()}
    return found


@family("steps.params", _three_steps("step", ("mlp", "layer-norm")))
@family("steps.params", _three_steps("replace") | _three_steps("rebind", ("mlp", "tied-parallel")))
def changed_parameters() -> Judge:
    """Three steps with parameters changed in between MUST give the gradients of plain autograd, in program {program}.

    Optimizers write parameters in place, loading and gathering replace their memory, and model surgery replaces the
    parameters themselves.

    Catches: weights kept from an earlier step, or a context of an earlier step under the same micro-batch number.
    """
    return gradients


@family(
    "steps.grads",
    {
        f"{name}-{way}": trial
        for name, words in {"strides": "restride", "bucket": "bucket", "bucket-for-none": "zero_none bucket"}.items()
        for way, trial in ways("mlp", full=f"F0 B0 {words} F1 B1", split=f"F0 I0 W0 {words} F1 I1 W1").items()
    }
    | {f"{word}-before-weight": of("mlp", f"F0 I0 W0 F1 I1 {word} W1") for word in ("restride", "bucket")},
    needs=("grads_in_param_grad",),
)
def handed_gradients() -> Judge:
    """B or W MUST add to a gradient that the caller put into other memory, in program {program}.

    Data-parallel wrappers make .grad a view of a flat bucket, and kernels or checkpoints leave other layouts.

    Catches: a gradient that is viewed as flat memory, or a new gradient in place of the caller's zeros.
    """
    return gradients


@family(
    "steps.frozen",
    {
        "between-full": of("mlp", "F0 B0 freeze0 F1 B1 unfreeze0 F2 B2"),
        "between-split": of("mlp", "F0 I0 W0 freeze0 F1 I1 W1 unfreeze0 F2 I2 W2"),
        "in-flight-full": of("mlp", "F0 F1 freeze0 B0 unfreeze0 B1"),
        "in-flight-split": of("mlp", "F0 F1 freeze0 I0 W0 unfreeze0 I1 W1"),
        "before-weight": of("mlp", "F0 I0 F1 I1 freeze0 W0 unfreeze0 W1"),
        "thawed-in-flight-full": of("frozen-layer", "F0 unfreeze2 B0 F1 B1"),
        "thawed-before-weight": of("frozen-layer", "F0 I0 unfreeze2 W0 F1 I1 W1"),
    },
)
def frozen_parameters() -> Judge:
    """A frozen or unfrozen parameter MUST get plain autograd's gradient, in program {program} on {stage}.

    Recipes freeze and unfreeze layers in flight, and a parameter frozen in its forward or its backward gets no
    gradient.

    Catches: trained parameters that are listed only once, when the stage opens, or a frozen parameter that raises.
    """
    return gradients


@family(
    "steps.in_flight",
    {
        "full": of("shifted-activation", "F0 F1 step B0 step F2 B1 B2"),
        "split": of("shifted-activation", "F0 F1 I0 step W0 I1 step W1 F2 I2 W2"),
    },
)
def changed_in_flight() -> Judge:
    """A micro-batch MUST get its own forward's gradients if a step precedes its B or W, in program {program}.

    Asynchronous pipelines step while micro-batches are in flight, and plain autograd uses the values of the forward.

    Catches: a forward that runs again, or weights that are read again, after the step.
    """
    return gradients


_CROSSED = {"full": "F0 1F0 F1 1F1 B0 1B1 1B0 B1", "split": "F0 1F0 I0 1I0 1W0 W0 F1 I1 1F1 1I1 1W1 W1"}


@family("steps.one_module", {way: of_two("mlp", "mlp", one, one_module=True) for way, one in _CROSSED.items()})
def one_module() -> Judge:
    """Two sessions on one module MUST each add the gradients of their own micro-batches, in program {program}.

    A model that runs twice in a pipeline, as a loop or for two losses, is two stages with one set of parameters.

    Catches: contexts or hooks kept on the module, which the other session takes or overwrites.
    """
    return gradients


@family("steps.tied", {way: of_two("mlp", "mlp", one, tied=("0.weight", "2.bias")) for way, one in _CROSSED.items()})
def tied_stages() -> Judge:
    """Parameters that two stages share MUST get the gradients of both stages, in program {program}.

    A V schedule puts the first and the last stage on one rank, and both may use one embedding.

    Catches: a gradient or context kept per parameter, which the other stage takes for its own.
    """
    return gradients


@family(
    "steps.opened_late",
    {
        "full": of_two("mlp", "residual", "F0 F1 B0 1F0 B1 1B0 F2 1F1 B2 1B1"),
        "split": of_two("mlp", "residual", "F0 I0 F1 1F0 1I0 I1 W0 1W0 W1"),
    },
)
@family(
    "steps.opened_late",
    {
        "one-module-full": of_two("mlp", "mlp", "F0 B0 F1 1F0 B1 1B0", one_module=True),
        "one-module-split": of_two("mlp", "mlp", "F0 I0 F1 1F0 1I0 W0 1W0 I1 W1", one_module=True),
    },
)
def opened_late() -> Judge:
    """Opening a stage while another one runs MUST NOT disturb it, in program {program}.

    A second model, or the same one again, may join a process that has micro-batches in flight.

    Catches: an open that resets state of the whole process or module.
    """
    return gradients
