"""The comparisons of a script, by the judge of its check, and the checks that a script cannot show."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from gradconform.adapter import Capabilities
from gradconform.contract.check import Check
from gradconform.fixtures.grad_tuples import gives_none
from gradconform.judge import all_requirements, gradients, hooks, state
from gradconform.judge.all_requirements import fires_hooks
from gradconform.judge.chain import chained
from gradconform.judge.refusal import refused, refused_or_without_effect, right_or_refused, right_where_claimed

from . import standalone

#: The observations to compare if gradients are judged, by their names in a script.
_GRADIENTS = (
    "output",
    "the gradient of input",
    "requires_grad of the gradient of input",
    "the gradient of",
    "requires_grad of what accumulates:",
)
#: The judged state, by the field of an observation's state.
_STATE = {
    "args": "argument",
    "output_grads": "output gradient",
    "params": "parameter",
    "requires_grad": "requires_grad of",
    "rng": "the generator's state",
    "process": "what the process is set to:",
    "handed": "as handed over:",
}
#: The comparisons of a script for each judge; ``{}`` is replaced by the judge's own argument.
COMPARED: dict[Callable[..., object], tuple[str, ...]] = {
    gradients: _GRADIENTS,
    chained: _GRADIENTS,
    right_or_refused: _GRADIENTS,
    right_where_claimed: _GRADIENTS,
    refused: ("refusal", "the gradient of", "requires_grad of"),
    refused_or_without_effect: ("refusal or nothing", "the gradient of", "requires_grad of"),
    state.bit_equal: (*_GRADIENTS, "bits"),
    state.as_under_autograd: ("{}",),
    state.buffers_as_under_autograd: ("buffer",),
    state.buffers_in_the_end: ("buffer in the end",),
    state.params_untouched_by_input_pass: ("the gradient of",),
    state.input_grad_attributes: (".grad of input",),
    state.upstream_goes_on: ("is wrong:",),
    state.returned_stays: ("changed later:",),
    state.returned_contiguous: ("contiguous: the gradient of input",),
    state.stored_as_laid_out: ("strides of the gradient of",),
    state.stored_separately: ("shared with a stored gradient:",),
    state.returned_separately: ("shared with a returned gradient:",),
    state.accumulates_in_place: ("moved to other storage: the gradient of",),
    state.weight_result: ("what W returns for",),
    hooks.fire_as_often: ("calls of the {} hook of",),
    hooks.fire_at_all: ("whether called: the {} hook of",),
    hooks.given_the_gradient: ("the gradient given to the {} hook of",),
    all_requirements: (
        *_GRADIENTS,
        *_STATE.values(),
        "buffer",
        "is wrong:",
        "changed later:",
        "shared with a stored gradient:",
        "calls of the tensor hook of",
        "calls of the post_accumulate hook of",
    ),
}
#: Observations made when a program has ended.
IN_THE_END = {"buffer in the end", "changed later:", "whether called: the module hook of"}
#: Observations that a script can make; lifetimes need the kit's own machinery.
_WATCHED = {"state", "hooks", "module_hooks"}
#: What a script cannot show, by the action, the watch or the judge of a check that needs it.
_NOT_SHOWN = {
    "buffer": "the caller's flat buffer of gradients",
    "zero_buffer": "the caller's flat buffer of gradients",
    "write": "outputs that the caller writes to",
    "refill": "arguments that the caller writes to",
    "lifetime": "when tensors are freed",
    "outputs": "outputs that the caller still reads after their backward",
    "stage": "what still holds the stage after close",
    "growth": "memory that grows from micro-batch to micro-batch",
    "right_afterwards": "what is right after an exception",
    "left_whole": "what is right after an exception",
    "surfaces": "which error an action has to raise",
    "right_or_raised": "gradients of a micro-batch that the caller changes while it is in flight",
}
#: Operations of a program on gradients in ``Parameter.grad``, even if an adapter keeps its own elsewhere.
_OF_STORED = {"zero_none", "zero_fill", "restride", "bucket", "replace", "rebind"}


def judge_of(check: Check) -> tuple[Callable[..., object], dict[str, Any]]:
    """Return the function that judges ``check``, and its arguments."""
    judge = check.judge
    return (judge.func, judge.keywords) if isinstance(judge, partial) else (judge, {})


def compared(check: Check, capabilities: Capabilities) -> set[str]:
    """Return the comparisons of the script of ``check``: the values that its judge reads, by their names there."""
    judge, arguments = judge_of(check)
    what = arguments.get("kind") or _STATE.get(arguments.get("what", ""))
    names = {one.format(what) for one in COMPARED.get(judge, ())}
    if judge is all_requirements and not fires_hooks(check.trials[0], capabilities):
        names = {one for one in names if not one.startswith("calls of")}
    return names


def beyond(check: Check, capabilities: Capabilities, device_name: str) -> list[str]:
    """Return what no script of torch alone can show of ``check``, in words."""
    none = gives_none(check.trials[0].output_grads) and capabilities.none_as_zeros
    found = ["None that is claimed to be zeros (none_as_zeros)"] if none else []
    for trial in check.trials[:1]:
        unknown = {action.kind for action in trial.actions} - standalone.ACTS.keys() | trial.watch - _WATCHED
        found += list(dict.fromkeys(_NOT_SHOWN.get(one, one) for one in sorted(unknown)))
        found += ["two stages in two threads"] if trial.at_once else []
    found += ["the mean over many draws"] if check.pooled is not None else []
    late = capabilities.weight_when == "finish" and any("hook of" in one for one in compared(check, capabilities))
    found += ["hooks that fire in finish (weight_when)"] if late else []
    if not capabilities.grads_in_param_grad:
        trial = check.trials[0]
        stored = trial.prior_grads or trial.one_module or trial.tied or trial.altering
        acts = {action.kind for action in trial.actions} & _OF_STORED
        found += ["gradients outside Parameter.grad"] if stored or acts else []
    if capabilities.bias_hooks != "as_weights" and any("hook of" in one for one in compared(check, capabilities)):
        found.append(f"hooks of biases that fire {capabilities.bias_hooks} (bias_hooks)")
    judge, _ = judge_of(check)
    found += [] if judge in COMPARED or found else [_NOT_SHOWN.get(judge.__name__, judge.__name__)]
    if not device_name.startswith("cpu") and "the generator's state" in compared(check, capabilities):
        found.append("the random numbers of a device")
    return found
