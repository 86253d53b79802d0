"""Judges hooks: they must fire as often as under plain autograd, when the gradient is available."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import Tensor

from gradconform.diagnosis.wrong_tensor import largest
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import HookCall, Step
from gradconform.results import Sort

from .finding import Finding
from .gradients import flushed_later
from .refusal import near
from .state import raised

_LABELS = {
    "tensor": "hook on the parameter",
    "post_accumulate": "post-accumulate-gradient hook",
    "module": "full-backward hook of the module",
    "own": "stage's hook over",
}


def fire_as_often(evidence: Evidence, kind: str) -> Iterator[Finding]:
    """Yield hooks of ``kind`` that an action called more or less often than plain autograd does."""
    yield from raised(evidence.observation)
    got, wanted, excused = Counter[str](), Counter[str](), _excused(evidence, kind)
    if evidence.capabilities.bias_hooks == "early":
        yield from _missing_early(evidence, kind, excused)
    for step in _until_raised(evidence):
        got, wanted = got + _counts(step, kind), wanted + _counts(evidence.oracle_step(step), kind)
        if flushed_later(evidence, step):
            continue
        for name in {**wanted, **got}:
            if got[name] != wanted[name] and name not in excused:
                text = f"the {_LABELS[kind]} was called {got[name]} instead of {wanted[name]} times"
                yield _of_hook(kind, name, str(step.action), text)
        got, wanted = Counter(), Counter()


def _missing_early(evidence: Evidence, kind: str, names: frozenset[str]) -> Iterator[Finding]:
    """Yield the hooks with ``names`` that were called in no I of the program."""
    if evidence.observation.raised is not None:  # what was not called then is its consequence
        return
    got = {name for step in evidence.observation.steps if step.action.kind == "I" for name in _counts(step, kind)}
    for name in sorted(names - got):
        yield _of_hook(kind, name, "", f"the {_LABELS[kind]} was not called in I, which bias_hooks='early' claims")


def fire_at_all(evidence: Evidence, kind: str) -> Iterator[Finding]:
    """Yield hooks of ``kind`` that fire under plain autograd but never here."""
    yield from raised(evidence.observation)
    if evidence.observation.raised is not None:  # what was not called then is its consequence
        return
    got = Counter(name for step in evidence.observation.steps for name in _counts(step, kind).elements())
    wanted = {name for step in evidence.oracle.steps for name in _counts(step, kind)}
    for name in sorted(wanted):
        if not got[name]:
            yield _of_hook(kind, name, "", f"the {_LABELS[kind]} was never called")


def given_the_gradient(evidence: Evidence, kind: str) -> Iterator[Finding]:
    """Yield hooks of ``kind`` that were called with a gradient other than plain autograd's.

    If plain autograd calls none in the same action, the call is compared with autograd's next one.
    """
    yield from raised(evidence.observation)
    excused = _excused(evidence, kind)
    for step in _until_raised(evidence):
        for name, calls in _calls(step, kind).items():
            if name in excused:
                continue
            for call, wanted in zip(calls, _wanted_calls(evidence, step, kind, name), strict=False):
                if not near(call.grad, wanted.grad):
                    seen = f"expected {_shown(wanted.grad)}, got {_shown(call.grad)}"
                    text = f"the {_LABELS[kind]} received a wrong gradient: {seen}"
                    yield _of_hook(kind, name, str(step.action), text)


def _until_raised(evidence: Evidence) -> Iterator[Step]:
    """Yield the steps before the one that raised and should not have: what later ones lack is its consequence."""
    last = evidence.observation.raised
    for step in evidence.observation.steps:
        if last is not None and step.position >= last.position:
            return
        yield step


def _excused(evidence: Evidence, kind: str) -> frozenset[str]:
    """Return the biases and norms of a split backward if ``bias_hooks`` says that their hooks fire at another time."""
    split = any(action.kind in {"I", "W"} for action in evidence.trial.actions)
    if not split or kind not in {"tensor", "post_accumulate"} or evidence.capabilities.bias_hooks == "as_weights":
        return frozenset()
    calls = (call for step in evidence.oracle.steps for call in step.hook_calls if call.kind == kind)
    return frozenset(call.name for call in calls if call.grad is not None and call.grad.dim() <= 1)


def _of_hook(kind: str, name: str, action: str, text: str) -> Finding:
    sorts: dict[str, Sort] = {"module": "module", "own": "thing"}
    sort = sorts.get(kind, "parameter gradient") if name else "thing"
    return Finding("hooks", name or "the stage", action, text, sort=sort)


def _wanted_calls(evidence: Evidence, step: Step, kind: str, name: str) -> list[HookCall]:
    """Return the calls that plain autograd makes of one hook in the action of ``step`` or, if none, the next ones.

    If a finish does the work of deferred W, these are the calls of all W since the previous finish.
    """
    steps = evidence.oracle.steps
    if evidence.capabilities.weight_when == "finish" and step.action.kind == "finish":
        before = [one.position for one in steps if one.action.kind == "finish" and one.position < step.position]
        flushed = [one for one in steps if max(before, default=-1) < one.position < step.position]
        return [call for one in flushed if one.action.kind == "W" for call in _calls(one, kind).get(name, [])]
    coming = (_calls(later, kind).get(name) for later in steps if later.position >= step.position)
    return next((calls for calls in coming if calls), [])


def _shown(grad: Tensor | None) -> str:
    return "None" if grad is None else f"largest element {largest(grad):.3g}"


def _calls(step: Step, kind: str) -> dict[str, list[HookCall]]:
    found: dict[str, list[HookCall]] = {}
    for call in step.hook_calls:
        if call.kind == kind:
            found.setdefault(call.name, []).append(call)
    return found


def _counts(step: Step, kind: str) -> Counter[str]:
    return Counter(call.name for call in step.hook_calls if call.kind == kind)
