"""State: what actions leave as it is, and gradients that share no storage."""

from __future__ import annotations

from functools import partial

from gradconform.fixtures.programs import full_all_forwards_first, split_interleaved
from gradconform.judge import gradients
from gradconform.judge import state as judge
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
    """I MUST leave every parameter gradient as it was, in {program} on {stage}.

    Weight gradients belong to W: counted in I as well they count twice, and a data-parallel reduce starts too early.

    Catches: a bias or norm written in I without being claimed, a full backward behind the name of I.
    """
    return judge.params_untouched_by_input_pass


@family("state.args", _both("mlp", "in-place-activation", "two-inputs"), seed="test_stage_backward_input")
def arguments() -> Judge:
    """An action MUST NOT change the values of the stage's inputs, in {program} on {stage}.

    Received activations are also what recomputation and other branches read.

    Catches: an input scaled, zeroed or freed in place.
    """
    return partial(judge.as_under_autograd, what="args")


@family("state.output_grads", _both("mlp", "bare-bias", "two-outputs"))
def output_gradients() -> Judge:
    """An action MUST NOT change the output gradients it was given, in {program} on {stage}.

    They lie in a receive buffer, or are another stage's returned gradients.

    Catches: a parameter gradient that is the output gradient itself and is then added to in place.
    """
    return partial(judge.as_under_autograd, what="output_grads")


@family("state.params", _both("mlp", "batch-norm"))
def parameters() -> Judge:
    """An action MUST NOT change the values of parameters, in {program} on {stage}.

    Only the optimizer writes parameters.

    Catches: a parameter detached, copied over or normalised in place.
    """
    return partial(judge.as_under_autograd, what="params")


@family("state.buffers", _both("batch-norm", "gathered-parameter"))
def buffers() -> Judge:
    """Buffers MUST be updated once per forward and never by a backward, in {program} on {stage}.

    A backward that runs the forward again updates running statistics twice.

    Catches: recomputation that is not plain autograd's.
    """
    return judge.buffers_as_under_autograd


@family("state.recomputed_buffers", _both("checkpoint-batch-norm"))
def recomputed_buffers() -> Judge:
    """Buffers MUST stand in the end where a full backward leaves them under plain autograd, in {program} on {stage}.

    A forward that is run again updates its running statistics again, once in a full backward. One that is run in I and
    in W trains other statistics than a full backward does, and the model is evaluated with them.

    Catches: a checkpointed forward that is run in both halves of a split backward.
    """
    return judge.buffers_in_the_end


@family(
    "state.requires_grad",
    _both("frozen-layer", "fixed-input-first", "mlp", "output-is-parameter", "output-is-input", "output-is-weight"),
)
def flags() -> Judge:
    """An action MUST NOT flip requires_grad of an input or parameter, in {program} on {stage}.

    Freezing for I and thawing for W is a tempting way to split, and loses what was frozen on purpose; detaching an
    output in place freezes a parameter or input that is an output itself.

    Catches: a frozen parameter that thaws, a parameter left frozen.
    """
    return partial(judge.as_under_autograd, what="requires_grad")


@family("state.rng", _both("mlp", "dropout", "checkpoint-dropout"))
def random_numbers() -> Judge:
    """The random number generator MUST stand where plain autograd leaves it, after every action of {program}.

    A generator that moves differently makes a resumed or compared run diverge.

    Catches: random numbers drawn in a backward, a forward run again without the generator's state restored.
    """
    return partial(judge.as_under_autograd, what="rng")


@family("state.process", _both("mlp", "dropout", "checkpoint"))
def process() -> Judge:
    """An action MUST leave the settings of the process as they were, in {program} on {stage}.

    Grad mode, default dtype, autocast, deterministic algorithms, anomaly mode, the number of threads and default hooks
    on saved tensors belong to whoever called. So do the random numbers of Python and NumPy, warning filters and
    environment variables.

    Catches: a setting that is changed for a backward and not put back, a generator seeded for all.
    """
    return partial(judge.as_under_autograd, what="process")


@family("state.handed", _both("list-output", "nested-output", "two-inputs"))
def handed() -> Judge:
    """An action MUST NOT take entries out of what it is handed, nor leave hooks on it, in {program} on {stage}.

    The caller goes over its lists of output gradients again, and its activations are sent and received into.

    Catches: a list emptied to free memory, a hook left on an input.
    """
    return partial(judge.as_under_autograd, what="handed")


@family("state.input_grad", _both("mlp", "two-inputs", "residual"), seed="test_stage_backward_input")
def input_grad_attribute() -> Judge:
    """An input's .grad MUST be None or that input's gradient after B or I, in {program} on {stage}.

    Whether .grad is set on inputs differs between implementations, and both are right; a wrong value is not.

    Catches: a running sum, a gradient of another slot, a gradient scaled in place after it was stored.
    """
    return judge.input_grad_attributes


@family("state.returned", _both("mlp", "sum-of-inputs", "output-is-input"))
def returned() -> Judge:
    """A returned input gradient MUST stay as it was returned while later actions run, in {program} on {stage}.

    It is being sent to the previous stage while the next micro-batch runs.

    Catches: a returned buffer used again, a returned gradient that is accumulated into.
    """
    return judge.returned_stays


@family("state.stored_storage", _both("mlp", "bare-bias", "residual", "tied-parallel", "output-is-parameter"))
def stored_storage() -> Judge:
    """A stored parameter gradient MUST share storage with no other gradient or input, in {program} on {stage}.

    The next receive overwrites an output gradient's buffer, and with it a parameter gradient that is the same memory;
    plain autograd clones for this reason.

    Catches: a bias gradient that is the output gradient, two parameters with one gradient buffer.
    """
    return judge.stored_apart


@family("state.returned_storage", _both("mlp", "sum-of-inputs", "residual", "output-is-input"), level="SHOULD")
def returned_storage() -> Judge:
    """Returned input gradients SHOULD share no storage with other gradients, in {program} on {stage}.

    Whoever scales one in place, or reuses the receive buffer, changes the other; torch.autograd.grad itself does share.

    Catches: an output gradient passed through as the input gradient of an addition.
    """
    return judge.returned_apart


@family(
    "state.returned_same_args",
    ways("mlp", full=full_all_forwards_first(3), split=split_interleaved(3), watch=_STATE, same_args=True),
)
def returned_same_args() -> Judge:
    """A returned gradient of an input that several micro-batches use MUST stay as it was returned, in {program}.

    The input's .grad is added to by the next micro-batch; a returned gradient that is the same tensor changes with it
    (pytorch #164329).

    Catches: .grad of the input and the returned gradient being one tensor.
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
    """Writing over a returned input gradient MUST NOT change a parameter's, in {program} on {stage}.

    Whoever is handed a gradient owns it: it is scaled in place, or received into, while W is still to come. Plain
    autograd clones what it stores.

    Catches: a weight context or .grad that holds the returned gradient itself.
    """
    return gradients


@family(
    "state.receive_buffer",
    over(("mlp", "bare-bias", "two-outputs"), "F0 F1 I0 receive0 I1 receive1 W0 W1"),
    level="SHOULD",
)
def receive_buffer() -> Judge:
    """Writing over an output gradient after its I SHOULD NOT change what W adds, in {program} on {stage}.

    What holds an output gradient is received into again once its I has returned; a W that still reads it adds what was
    sent for another micro-batch.

    Catches: output gradients kept by reference from I to W.
    """
    return gradients


@family("state.returned_layout", ways(("mlp", "transposed-use"), full="F0 B0", split="F0 I0 W0"), level="SHOULD")
def returned_layout() -> Judge:
    """The gradient returned for a contiguous input SHOULD be contiguous, in {program} on {stage}.

    It is sent to the previous stage as it is; point-to-point sends refuse a tensor that is not contiguous.

    Catches: a gradient returned as a transposed view.
    """
    return judge.returned_contiguous


@family(
    "state.stored_layout",
    ways(("mlp", "conv2d-channels-last"), full="F0 B0 F1 B1", split="F0 I0 W0 F1 I1 W1"),
    level="SHOULD",
    needs=("grads_in_param_grad",),
)
def stored_layout() -> Judge:
    """A stored parameter gradient SHOULD have the strides that plain autograd gives it, in {program} on {stage}.

    Those are the parameter's own. Fused optimizers and flat buckets take the memory as it lies, and copy or refuse what
    lies otherwise.

    Catches: a transposed product stored as it came.
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
    """What W returns MUST be the parameter gradients that stand after it, or those it added, in {program}.

    A caller that logs or reduces what W returns would use values of the micro-batch before (pytorch #153833).

    Catches: the tuple collected before the gradients were accumulated.
    """
    return judge.weight_result
