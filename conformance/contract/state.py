"""State: values that actions must not change, and gradients that share no storage."""

from __future__ import annotations

from functools import partial

from gradconform.fixtures.programs import full_all_forwards_first, split_interleaved
from gradconform.fixtures.stages.endings import LAST
from gradconform.judge import gradients
from gradconform.judge import state as judge
from gradconform.judge.between import right_or_raised
from gradconform.trial.trial import Trial

from .cases import of, over, ways
from .check import Judge, family

_STATE = frozenset({"state"})


def _both(*names: str) -> dict[str, Trial]:
    """Return a full and a split trial per stage."""
    return ways(names, full=full_all_forwards_first(2), split=split_interleaved(2), watch=_STATE)


@family(
    "state.input_pass",
    over(("mlp", "layer-norm", "tied-parallel", "bare-bias"), "F0 F1 I0 I1 W1 W0")
    | {"prior": of("mlp", "F0 I0 W0", prior_grads=True)},
    needs=("input_pass_touches_params=False",),
    seed="test_stage_backward_input",
)
def input_pass() -> Judge:
    """I MUST NOT change any parameter gradient, in program {program} on {stage}.

    A weight gradient that I and W both add counts twice, and a data-parallel reduction starts too early.

    Catches: a bias or norm gradient that I writes without a claim, or a full backward in place of I.
    """
    return judge.params_untouched_by_input_pass


@family("state.args", _both("mlp", "in-place-activation", "two-inputs"), seed="test_stage_backward_input")
def arguments() -> Judge:
    """An action MUST NOT change the values of the stage's inputs, in program {program} on {stage}.

    Recomputation and other branches read the same activations again.

    Catches: an input that is scaled, zeroed or freed in place.
    """
    return partial(judge.as_under_autograd, what="args")


@family("state.output_grads", _both("mlp", "bare-bias", "two-outputs"))
def output_gradients() -> Judge:
    """An action MUST NOT change the output gradients that it receives, in program {program} on {stage}.

    An output gradient is a receive buffer, or the returned gradient of another stage.

    Catches: a parameter gradient that is the output gradient itself and is then added to in place.
    """
    return partial(judge.as_under_autograd, what="output_grads")


@family("state.params", _both("mlp", "batch-norm"))
def parameters() -> Judge:
    """An action MUST NOT change the values of parameters, in program {program} on {stage}.

    Only the optimizer may write parameters; every other change trains another model.

    Catches: a parameter that is detached, copied over or normalised in place.
    """
    return partial(judge.as_under_autograd, what="params")


@family("state.buffers", _both("unsaved-buffer"), since="1.1")
@family("state.buffers", _both("batch-norm", "gathered-parameter"))
def buffers() -> Judge:
    """A forward MUST update buffers once, and a backward never, in program {program} on {stage}.

    A backward that runs the forward again updates running statistics twice.

    Catches: recomputation that plain autograd does not do.
    """
    return judge.buffers_as_under_autograd


@family("state.recomputed_buffers", _both("checkpoint-batch-norm"))
def recomputed_buffers() -> Judge:
    """The final buffers MUST equal those of a full backward under plain autograd, in program {program} on {stage}.

    A forward that runs again in both I and W trains other running statistics than B, and evaluation uses them.

    Catches: a checkpointed forward that runs in both halves of a split backward.
    """
    return judge.buffers_in_the_end


@family(
    "state.requires_grad",
    _both("frozen-layer", "fixed-input-first", "mlp", "output-is-parameter", "output-is-input", "output-is-weight"),
)
def flags() -> Judge:
    """An action MUST NOT change requires_grad of an input or parameter, in program {program} on {stage}.

    A parameter that the user froze would be trained, or a trained one would stop.

    Catches: a split that freezes and unfreezes parameters, or an in-place detach of an output that is a parameter or
    input.
    """
    return partial(judge.as_under_autograd, what="requires_grad")


@family("state.rng", _both("mlp", "dropout", "checkpoint-dropout"))
def random_numbers() -> Judge:
    """The random number generator MUST have plain autograd's state after every action of program {program}.

    A different generator state makes a resumed or compared run diverge.

    Catches: random numbers drawn in a backward, or a repeated forward that does not restore the generator's state.
    """
    return partial(judge.as_under_autograd, what="rng")


@family("state.process", _both("mlp", "dropout", "checkpoint"))
def process() -> Judge:
    """An action MUST leave all process settings as they were, in program {program} on {stage}.

    Grad mode, default dtype, autocast, determinism, anomaly mode, threads, saved-tensor hooks, Python and NumPy random
    states, warnings and environment variables belong to the caller.

    Catches: a setting that a backward changes and does not restore, or a global generator that it seeds.
    """
    return partial(judge.as_under_autograd, what="process")


@family("state.handed", _both("list-output", "nested-output", "two-inputs"))
def handed() -> Judge:
    """An action MUST NOT remove entries from arguments or leave hooks on them, in program {program} on {stage}.

    The caller reads its lists of output gradients again, and sends and receives into its activations.

    Catches: a list that is emptied to free memory, or a hook left on an input.
    """
    return partial(judge.as_under_autograd, what="handed")


@family("state.input_grad", _both("mlp", "two-inputs", "residual"), seed="test_stage_backward_input")
def input_grad_attribute() -> Judge:
    """After B or I, an input's .grad MUST be None or that input's gradient, in program {program} on {stage}.

    An implementation may set .grad of an input or not, but a caller that reads a wrong value sends it on.

    Catches: a running sum, a gradient of another slot, or a gradient scaled in place after it was stored.
    """
    return judge.input_grad_attributes


@family("state.returned", _both("mlp", "sum-of-inputs", "output-is-input"))
def returned() -> Judge:
    """A returned input gradient MUST keep its value while later actions run, in program {program} on {stage}.

    The pipeline still sends the gradient to the previous stage while the next micro-batch runs.

    Catches: a returned buffer that is used again, or a returned gradient that is accumulated into.
    """
    return judge.returned_stays


@family("state.stored_storage", _both("mlp", "bare-bias", "residual", "tied-parallel", "output-is-parameter"))
def stored_storage() -> Judge:
    """A stored parameter gradient MUST share storage with no other gradient or input, in program {program} on {stage}.

    The next receive overwrites the buffer of an output gradient; plain autograd clones it for this reason.

    Catches: a bias gradient that is the output gradient, or two parameters with one gradient buffer.
    """
    return judge.stored_separately


@family("state.returned_storage", _both("mlp", "sum-of-inputs", "residual", "output-is-input"), level="SHOULD")
def returned_storage() -> Judge:
    """Returned input gradients SHOULD share no storage with other gradients, in program {program} on {stage}.

    A caller that scales one gradient in place changes the other; torch.autograd.grad shares too, so this is no MUST.

    Catches: an output gradient that is returned unchanged as the input gradient of an addition.
    """
    return judge.returned_separately


@family(
    "state.returned_same_args",
    ways("mlp", full=full_all_forwards_first(3), split=split_interleaved(3), watch=_STATE, same_args=True),
)
def returned_same_args() -> Judge:
    """A returned gradient of an input that micro-batches share MUST keep its value, in program {program}.

    The next micro-batch adds to the input's .grad, and a returned gradient that is this tensor changes too (pytorch
    #164329).

    Catches: a returned gradient that is the input's .grad tensor itself.
    """
    return judge.returned_stays


@family(
    "state.returned_owned",
    ways(
        ("added-parameter", "mlp", "residual"),
        full="F0 F1 B0 overwrite0 B1 overwrite1",
        split="F0 F1 I0 overwrite0 I1 overwrite1 W0 W1",
    ),
)
def returned_owned() -> Judge:
    """Overwriting a returned input gradient MUST NOT change a parameter gradient, in program {program} on {stage}.

    The caller owns a returned gradient: it may scale it in place or receive into it before W runs.

    Catches: a weight context or .grad that holds the returned gradient itself.
    """
    return gradients


@family(
    "state.receive_buffer",
    {"endings": tuple(over(LAST, "F0 F1 I0 receive0 I1 receive1 W0 W1").values())},
    level="SHOULD",
    since="1.1",
)
@family(
    "state.receive_buffer",
    over(("mlp", "bare-bias", "two-outputs"), "F0 F1 I0 receive0 I1 receive1 W0 W1"),
    level="SHOULD",
)
def receive_buffer() -> Judge:
    """Overwriting an output gradient after I SHOULD NOT change the gradients W adds, in program {program} on {stage}.

    The receive buffer is used again after I, so a W that still reads it adds another micro-batch's gradient.

    Catches: output gradients that are kept by reference from I to W.
    """
    return gradients


@family("state.returned_layout", ways(("mlp", "transposed-use"), full="F0 B0", split="F0 I0 W0"), level="SHOULD")
def returned_layout() -> Judge:
    """The returned gradient of a contiguous input SHOULD be contiguous, in program {program} on {stage}.

    The pipeline sends the gradient as it is, and point-to-point sends refuse a tensor that is not contiguous.

    Catches: a gradient that is returned as a transposed view.
    """
    return judge.returned_contiguous


@family(
    "state.stored_layout",
    ways(("mlp", "conv2d-channels-last"), full="F0 B0 F1 B1", split="F0 I0 W0 F1 I1 W1"),
    level="SHOULD",
    needs=("grads_in_param_grad",),
)
def stored_layout() -> Judge:
    """A stored parameter gradient SHOULD have the strides plain autograd gives it, in program {program} on {stage}.

    Fused optimizers and flat buckets expect the parameter's own strides, and copy or refuse other strides.

    Catches: a transposed product that is stored without a copy.
    """
    return judge.stored_as_laid_out


@family(
    "state.weight_result",
    {
        "mlp": of("mlp", "F0 I0 W0 F1 I1 W1"),
        "deferred": of("mlp", "F0 F1 I0 I1 W1 W0"),
        "two-outputs": of("two-outputs", "F0 I0 W0 F1 I1 W1"),
    },
    needs=("weight_result",),
)
def weight_result() -> Judge:
    """W MUST return the stored parameter gradients or those that it added, in program {program}.

    A caller that logs or reduces the result of W would use values of the previous micro-batch (pytorch #153833).

    Catches: a result that is collected before the gradients are accumulated.
    """
    return judge.weight_result


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


def _between(*ways: str, rarer: bool) -> dict[str, tuple[Trial, ...]]:
    """Return the trials of writes by case and way, for profile standard or for full alone."""
    return {
        f"{case}-{way}": tuple(of(name, program.format(word)) for name in names)
        for case, (*names, word) in _BETWEEN.items()
        for way, program in _WAYS.items()
        if way in ways and (case, way) not in _LEFT_OUT and ((case, way) in _RARER) is rarer
    }


def _before_backward(trials: dict[str, tuple[Trial, ...]]) -> dict[str, tuple[Trial, ...]]:
    """Return the trials of B, without the claims on I and W that contracts 1.1 and 1.2 ask for."""
    return {case.removesuffix("-full"): several for case, several in trials.items()}


@family("state.before_backward", _before_backward(_between("full", rarer=False)), since="1.3")
@family("state.before_backward", _before_backward(_between("full", rarer=True)), profile="full", since="1.3")
@family("state.between", _between("full", rarer=False), needs=_IN_FLIGHT, since="1.1", until="1.3")
@family("state.between", _between("full", rarer=True), needs=_IN_FLIGHT, profile="full", since="1.1", until="1.3")
@family("state.between", _between("input", "weight", rarer=False), needs=_IN_FLIGHT, since="1.1")
@family("state.between", _between("input", "weight", rarer=True), needs=_IN_FLIGHT, profile="full", since="1.1")
def between() -> Judge:
    """After a change of the caller in flight, an action MUST raise or give plain autograd's gradients, in {program}.

    Autograd counts writes, keeps replaced memory and reads requires_grad late; training on other values shows no error.

    Catches: saved tensors read around autograd's count of writes, a forward that runs again on other values, or a list
    of frozen parameters from before.
    """
    return right_or_raised
