"""Tests a target that keeps gradients outside ``Parameter.grad``, by running it on one Linear."""

from __future__ import annotations

from collections.abc import Callable

from gradconform.adapter import Capabilities
from gradconform.drive.main_grad import NotClearedError, is_clear
from gradconform.drive.observation import Observation
from gradconform.process.interrupts import pass_on_an_interrupt
from gradconform.trial.trial import Trial

from .preflight import LINEAR

#: The claims that are tested on one Linear.
SHOWN = ("clears_grads", "grads_on_param", "post_accumulate_hooks")


def not_shown(claims: Capabilities, observe: Callable[[Trial], Observation]) -> frozenset[str]:
    """Return the claims of :data:`SHOWN` that a target does not meet; none if an action raises.

    The checks report what an action raises. The Linear has gradients in ``main_grad`` before the first action, and
    hooks on its parameters. The gradients are cleared after three micro-batches, whose sum some targets compute again
    whenever it is read.
    """
    backward = "B{0}" if claims.full else "I{0} W{0}"
    trial = Trial(
        stages=(LINEAR,),
        program=" ".join(f"F{{0}} {backward}".format(mb) for mb in range(3)) + " finish",
        loss=not claims.mid_stage,
        prior_grads=True,
        watch=frozenset({"hooks"}),
    )
    try:
        steps = observe(trial).steps
        if any(step.raised for step in steps):
            return frozenset()
        fired = {call.name for step in steps for call in step.hook_calls if call.kind == "post_accumulate"}
        shown = {
            "grads_on_param": not any(map(is_clear, steps[0].param_grads.values())),
            "post_accumulate_hooks": fired >= steps[0].param_grads.keys(),
            "clears_grads": _clears(trial, observe),
        }
    except BaseException as error:  # noqa: BLE001 (the checks meet every error of the target)
        pass_on_an_interrupt(error)
        return frozenset()
    return frozenset(name for name in SHOWN if not shown[name])


def _clears(trial: Trial, observe: Callable[[Trial], Observation]) -> bool:
    try:
        observe(Trial(stages=trial.stages, program=f"{trial.program} zero_none", loss=trial.loss))
    except NotClearedError:
        return False
    return True
