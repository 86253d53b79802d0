"""Judges a random trial by all that can be asked of it: whatever was watched has to be as under plain autograd."""

from __future__ import annotations

from collections.abc import Iterator

from gradconform.evidence import Evidence
from gradconform.judge import hooks, state
from gradconform.judge.finding import Finding
from gradconform.judge.gradients import gradients

#: What no action computes.
_STATE = ("args", "output_grads", "params", "requires_grad", "rng")


def whole(evidence: Evidence) -> Iterator[Finding]:
    """Yield what differs from plain autograd: values after every action, and state and hooks where they are watched.

    Where a value is wrong nothing further is asked.
    """
    found = list(gradients(evidence))
    if found:
        yield from found
        return
    if "state" in evidence.trial.watch:
        for what in _STATE:
            yield from state.as_under_autograd(evidence, what)
        yield from state.buffers_as_under_autograd(evidence)
        if not evidence.capabilities.input_pass_touches_params:
            yield from state.params_untouched_by_input_pass(evidence)
        yield from state.returned_stays(evidence)
        yield from state.stored_apart(evidence)
    if _hooked(evidence):
        yield from hooks.fire_as_often(evidence, "tensor")
        yield from hooks.fire_as_often(evidence, "post_accumulate")


def _hooked(evidence: Evidence) -> bool:
    """Tell whether hooks were on parameters, and whether the implementation claims to fire them."""
    kinds = {action.kind for action in evidence.trial.actions}
    claims = evidence.capabilities
    if "parameter_input" in evidence.trial.needs:  # whether I accumulates such a parameter is nobody's rule
        return False
    fires = claims.grads_in_param_grad and (claims.hooks == "with_grad" or not kinds & {"I", "W"})
    return fires and ("hook" in kinds or "hooks" in evidence.trial.watch)
