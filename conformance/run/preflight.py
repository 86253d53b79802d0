"""The pre-flight: tests an adapter before all checks, because a wrong adapter blames the implementation.

It also tests claims about the place of gradients, for a target that keeps them outside ``Parameter.grad``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from gradconform.adapter import Adapter, Capabilities, UnsupportedError
from gradconform.drive.evidence import Evidence
from gradconform.drive.main_grad import NotClearedError, is_clear
from gradconform.drive.observation import Observation, Raised
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.judge.finding import findings_in
from gradconform.judge.gradients import gradients
from gradconform.process.interrupts import pass_on_an_interrupt
from gradconform.target.resolve import Target
from gradconform.text.counts import count
from gradconform.text.findings import frame_lines
from gradconform.trial.trial import Trial

LINEAR = StageCase("preflight-linear", "one Linear", lambda: nn.Linear(5, 3), (Normal((7, 5)),))


class _Bare(nn.Module):
    """Parameters without any layer that an adapter could replace."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.t() + self.bias


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = self.second = nn.Linear(5, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return] # a module's result


class _Added(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)

    def forward(self, fixed: Tensor, x: Tensor) -> Tensor:
        return self.linear(x) * fixed  # type: ignore[no-any-return] # a module's result


_BARE = StageCase("preflight-bare", "a weight and a bias of no layer", _Bare, (Normal((7, 5)),))
_TIED = StageCase(
    "preflight-tied", "one Linear under two names", _Tied, (Normal((7, 5)),), frozenset({"shared_params"})
)
_TWO = StageCase(
    "preflight-two",
    "two inputs of which one is fixed",
    _Added,
    (Normal((7, 3), requires_grad=False), Normal((7, 5))),
    frozenset({"multi_input", "fixed_input"}),
)

#: The required forms of an adapter's results, the stage of each, and its programs of B and of I and W.
PLAIN = {
    "one Linear under two names": (_TIED, ("F0 B0", "F0 I0 W0")),
    "two inputs of which one is fixed": (_TWO, ("F0 B0", "F0 I0 W0")),
    "a second micro-batch in flight": (LINEAR, ("F0 F1 B0 B1", "F0 F1 I0 W0 I1 W1")),
    "outputs that the caller frees": (LINEAR, ("F0 B0 drop0 F1 B1", "F0 I0 drop0 W0 F1 I1 drop1 W1")),
}

#: Python's errors for wrong code, which an implementation does not raise to refuse a request.
_SLIPS = frozenset({"AttributeError", "IndexError", "KeyError", "NameError", "TypeError", "UnboundLocalError"})


def preflight(target: Target, evidence_of: Callable[[Trial], Evidence]) -> str | None:
    """Return the adapter's mistake in some plain trials, or None.

    One micro-batch of one Linear, B or else I and W, must be right, and its outputs must require a gradient. If it is
    wrong, but the same program on parameters without layers is right, the adapter is right as well. Then the
    implementation's layers are at fault, which an adapter puts in the place of Linears, and the checks report them. In
    the other trials the adapter is responsible only for the form: the names and the number of its results, and no
    coding errors in its own file. A wrong value there is the implementation's, and the checks report it.
    """
    claims = target.capabilities
    if not (claims.full or claims.split):
        return f"adapter {target.name!r} claims neither full nor split: there is nothing to judge"
    trial = Trial(stages=(LINEAR,), program="F0 B0" if claims.full else "F0 I0 W0", loss=not claims.mid_stage)
    try:
        evidence = evidence_of(trial)
        findings = findings_in(gradients(evidence))
        lines = "; ".join(map(str, findings))
    except UnsupportedError as error:
        return _described(
            target, _first(trial), f"it claims {'full' if claims.full else 'split'} and refuses it: {error}"
        )
    if lines and not _layers_alone(target.adapter, trial, evidence_of):
        shown = frame_lines(finding.to_dict() for finding in findings)
        return "\n".join([_described(target, _first(trial), lines), *shown])
    without_grad = "" if trial.loss else "; ".join(_without_grad(evidence))
    if without_grad:
        return _described(target, _first(trial), without_grad)
    for what, (stage, programs) in PLAIN.items():
        for program in programs:
            plain = replace(trial, stages=(stage,), program=program)
            lines = "" if claims.unclaimed(plain.needs) else "; ".join(_slips(target.adapter, plain, evidence_of))
            if lines:
                return _described(target, f"{what}, {program}", lines)
    return None


def _first(trial: Trial) -> str:
    return f"one Linear, one micro-batch, {trial.program}"


def _layers_alone(adapter: Adapter, trial: Trial, evidence_of: Callable[[Trial], Evidence]) -> bool:
    """Return whether a wrong result for a Linear has the right form, and parameters without layers are right."""
    try:
        bare = gradients(evidence_of(replace(trial, stages=(_BARE,))))
        return not any(_slips(adapter, trial, evidence_of)) and not findings_in(bare)
    except UnsupportedError:
        return False


def _described(target: Target, what: str, lines: str) -> str:
    return (
        f"adapter {target.name!r} failed its pre-flight ({what}): {lines}. "
        "Nothing is judged before this is right: look at the adapter first, then at the implementation"
    )


def _without_grad(evidence: Evidence) -> Iterator[str]:
    """Yield outputs that require no gradient though plain autograd's do: the next stage would compute none for them."""
    for step in evidence.observation.steps:
        lost = sorted(set(step.detached) - set(evidence.oracle_step(step).detached))
        if lost:
            outputs = f"output{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))}"
            yield f"{step.action} returned {outputs} without requires_grad; return the outputs as the stage gave them"


def _slips(adapter: Adapter, trial: Trial, evidence_of: Callable[[Trial], Evidence]) -> Iterator[str]:
    """Yield results without the form that the adapter interface requires."""
    try:
        evidence = evidence_of(trial)
    except UnsupportedError:
        return  # the checks that depend on a refused claim report it
    for step in evidence.observation.steps:
        if step.raised is not None:
            if _is_slip(adapter, step.raised):
                yield f"{step.action} raised {step.raised} at {step.raised.file}:{step.raised.line}"
            return
        wanted = evidence.oracle_step(step)
        missing = sorted(wanted.param_grads.keys() - step.param_grads.keys())
        if missing:
            named = ", ".join(step.param_grads) or "none"
            yield f"after {step.action} param_grads() has no {', '.join(missing)}; its names: {named}"
            return
        if step.input_grads is not None and len(step.input_grads) != len(wanted.input_grads or ()):
            found, expected = len(step.input_grads), len(wanted.input_grads or ())
            given = f"{count(expected, 'argument')}, fixed ones included"
            yield f"{step.action} returned {count(found, 'input gradient')} for {given}"
            return


def _is_slip(adapter: Adapter, raised: Raised) -> bool:
    opens = adapter.open if inspect.isroutine(adapter.open) or inspect.isclass(adapter.open) else type(adapter.open)
    return raised.type in _SLIPS and raised.file == inspect.getsourcefile(opens)


#: The claims that are tested on one Linear.
SHOWN = ("clears_grads", "grads_on_param", "post_accumulate_hooks")


def unmet_claims(claims: Capabilities, observe: Callable[[Trial], Observation]) -> frozenset[str]:
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
