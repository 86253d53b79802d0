"""Judges a random trial by every requirement: all watched values must be as under plain autograd."""

from __future__ import annotations

from gradconform.adapter import Capabilities, UnsupportedError
from gradconform.drive.evidence import Evidence
from gradconform.fixtures.grad_tuples import gives_none
from gradconform.trial.trial import Trial

from . import hooks, state
from .finding import Judged, by_numeric_rule, findings_in
from .gradients import gradients

#: State that no action computes.
_STATE = ("args", "output_grads", "params", "requires_grad", "rng", "process", "handed")


@by_numeric_rule
def all_requirements(evidence: Evidence) -> Judged:
    """Yield differences from plain autograd: values after every action, and state and hooks if they are watched.

    If a value is wrong, nothing more is checked. None among the output gradients is judged only if none_output_grad is
    claimed. grad_tuple.none checks the other targets.

    Raises:
        UnsupportedError: There is None among the output gradients, and none_output_grad is not claimed.
    """
    if gives_none(evidence.trial.output_grads) and not evidence.capabilities.none_output_grad:
        msg = "plain autograd itself refuses None for an output, or reads it as 1 where there is but one element"
        raise UnsupportedError(msg)
    judged = list(gradients(evidence))
    yield from judged
    if findings_in(judged):
        return
    yield from state.upstream_goes_on(evidence)
    if "state" in evidence.trial.watch:
        for what in _STATE:
            yield from state.as_under_autograd(evidence, what)
        yield from state.buffers_as_under_autograd(evidence)
        if not evidence.capabilities.input_pass_touches_params:
            yield from state.params_untouched_by_input_pass(evidence)
        yield from state.returned_stays(evidence)
        yield from state.stored_separately(evidence)
    if fires_hooks(evidence.trial, evidence.capabilities):
        yield from hooks.fire_as_often(evidence, "tensor")
        yield from hooks.fire_as_often(evidence, "post_accumulate")


def fires_hooks(trial: Trial, claims: Capabilities) -> bool:
    """Return whether hooks are on parameters, and the implementation claims to fire them."""
    kinds = {action.kind for action in trial.actions}
    if "parameter_input" in trial.needs:  # no rule says whether I accumulates such a parameter
        return False
    split = bool(kinds & {"I", "W"})
    claimed = claims.hooks == "with_grad" if split else claims.hooks != "nowhere"
    fires = claims.post_accumulate_hooks and claimed
    on_and_off = "hook" in kinds and claims.weight_when == "weight"
    return fires and (on_and_off or "hooks" in trial.watch)
