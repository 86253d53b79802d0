"""Judges micro-batches whose backward raises: whether the error surfaces, what remains, and later gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import torch
from torch import Tensor

from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.diagnosis.parts import same
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import Step
from gradconform.tolerance import Partials, sizes

from .finding import Finding, Judged, by_numeric_rule, error_in
from .gradients import as_in_grad, compare_in, due, returned_values
from .refusal import near
from .values import Known, Reference

Grads = Mapping[str, Tensor | None]


def surfaces(evidence: Evidence) -> Iterator[Finding]:
    """Yield every micro-batch for which neither B, nor I or W, raised the error of its backward.

    An error counts if it is the same one, or was raised from it or while it was handled, so that a traceback shows it.
    """
    for step in evidence.oracle.steps:
        if not _raises(evidence, step) or step.raised is None:
            continue
        own = [one for one in evidence.observation.steps if _is_of(evidence, one, step.action.stage, step.action.mb)]
        raised = [one.raised for one in own if one.raised is not None]
        if own and not any(step.raised.type in one.chain for one in raised):
            actions = " and ".join(str(one.action) for one in own)
            instead = f"raised {raised[0]} without it" if raised else "raised no error"
            yield Finding("no_error", "the action", actions, f"{instead}; plain autograd raises {step.raised}")


@by_numeric_rule
def left_whole(evidence: Evidence) -> Judged:
    """Yield parameter gradients that, after an action that raised, are neither unchanged nor complete.

    Which of them autograd had reached when it stopped depends on its order, and on how a backward is split.
    """
    before: dict[int, Grads] = {}
    for step in evidence.observation.steps:
        lane, mb = step.action.stage, step.action.mb
        held = before.get(lane, {})
        if _raises(evidence, step) and step.raised is not None and due(evidence, step):
            own = evidence.reference(lane, mb, step.position + 1).params
            for name, grad in step.param_grads.items():
                stood = held.get(name)
                if not any(near(grad, one) for one in (stood, _sum(stood, own[name]))):
                    text = "is neither unchanged nor complete after the action that raised"
                    yield Finding("changed", name, str(step.action), text, sort="parameter gradient")
        before[lane] = step.param_grads


@by_numeric_rule
def right_afterwards(evidence: Evidence) -> Judged:
    """Yield wrong gradients of micro-batches that do not raise: each adds its own to the existing gradients.

    A finish may raise after the error: the micro-batch that raised is left.
    """
    before: dict[int, Grads] = {}
    reported: set[str] = set()
    failed = False
    for step in evidence.observation.steps:
        lane = step.action.stage
        failed = failed or (_raises(evidence, step) and step.raised is not None)
        may_raise = step.action.misuse or (step.action.kind == "finish" and failed)  # the error left work undone
        if step.raised is not None and not may_raise:
            yield error_in(step.action, step.raised)
        elif not _raises(evidence, step):
            yield from returned_values(evidence, step, evidence.oracle_step(step))
        if not _raises(evidence, step) and due(evidence, step):
            for seen in _added(evidence, step, before.get(lane, {}), skipped=reported):
                if isinstance(seen, Finding):
                    reported.add(seen.where)
                yield seen
        if due(evidence, step) or _raises(evidence, step):
            before[lane] = step.param_grads


def _added(evidence: Evidence, step: Step, before: Grads, *, skipped: set[str]) -> Judged:
    """Yield gradients after an action that differ from those before it plus its micro-batch's own."""
    adds = step.action.kind in {"B", "W"}
    lane, mb, until = step.action.stage, step.action.mb, step.position + 1
    own = evidence.on_device(lane, mb, until).params if adds else {}
    wide = evidence.reference(lane, mb, until).params if adds else {}
    for name, grad in step.param_grads.items():
        if name in skipped:
            continue
        plain = evidence.oracle_step(step).param_grads[name]
        stood, shown = as_in_grad(before.get(name), plain), as_in_grad(grad, plain)
        terms = partial(_terms, evidence, step, name) if adds else None
        expected = _sum(stood, own.get(name))
        reference: Reference | None = _sum_of(stood, wide.get(name), terms)
        if evidence.mistaken:  # a mistake adds no gradient, so the values before it say nothing
            expected, reference = plain, None
        unchanged = step.raised is not None and same(before.get(name), grad)
        explain = partial(_raised, step) if unchanged else None
        yield from compare_in(evidence, step, "parameter gradient", name, shown, expected, reference, explain)


def _raised(step: Step, _: Tensor | None) -> Cause:
    return Cause(Mistake.ACTION_RAISED, action=str(step.action))


def _terms(evidence: Evidence, step: Step, name: str) -> Partials:
    lane, mb = step.action.stage, step.action.mb
    return sizes([evidence.references.terms(lane, mb, step.position + 1).params[name]])


def _sum_of(stood: Tensor | None, added: Tensor | None, terms: Callable[[], Partials] | None) -> Reference:
    def reference() -> Known:
        held = None if stood is None else stood.to(torch.promote_types(stood.dtype, torch.float64))
        return Known(_sum(held, added), sizes([held, added]), terms)

    return reference


def _sum(stood: Tensor | None, added: Tensor | None) -> Tensor | None:
    if stood is None or added is None:
        return added if stood is None else stood
    return stood + added


def _raises(evidence: Evidence, step: Step) -> bool:
    """Return whether an action belongs to a micro-batch whose backward raises, and may raise."""
    return step.action.misuse and step.action.mb in evidence.trial.raising


def _is_of(evidence: Evidence, step: Step, lane: int, mb: int) -> bool:
    return _raises(evidence, step) and (step.action.stage, step.action.mb) == (lane, mb)
