"""Judges state: the state that an action must not change, and the values that a second run must reproduce."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor

from gradconform.adapter import UnsupportedError
from gradconform.diagnosis import likely_cause
from gradconform.drive.evidence import Evidence
from gradconform.drive.observation import AS_BEFORE, Observation, Step
from gradconform.results import Sort
from gradconform.tolerance import Partials
from gradconform.tolerance import judge as judge_numbers

from .finding import Finding, Judged, RefusedError, by_numeric_rule, error_in, findings_in
from .gradients import compare_in, one_of
from .refusal import near, same

_SORTS: dict[str, Sort] = {
    "args": "argument", "output_grads": "output gradient", "params": "parameter", "buffers": "buffer",
    "requires_grad": "requires_grad flag", "rng": "thing", "process": "thing", "handed": "thing",
}  # fmt: skip


def raised(observation: Observation) -> Iterator[Finding]:
    """Yield the action that raised and should not have raised."""
    if observation.raised is not None:
        step = observation.raised
        yield error_in(step.action, step.raised)


def as_under_autograd(evidence: Evidence, what: str) -> Iterator[Finding]:
    """Yield state that differs from plain autograd's after the same action.

    ``what`` is a field of :class:`~gradconform.drive.observation.State` that no action computes: ``args``,
    ``output_grads``, ``params``, ``requires_grad``, ``rng``, ``process`` or ``handed``.
    """
    yield from _differing(evidence, what, _left if what == "process" else same)


def _left(got: object, expected: object) -> bool:
    """Return whether a setting is unchanged, or as under plain autograd, which may be the first to import a library."""
    return got == AS_BEFORE or same(got, expected)


@by_numeric_rule
def buffers_as_under_autograd(evidence: Evidence) -> Iterator[Finding]:
    """Yield buffers that differ from plain autograd's after the same action.

    Buffers are computed, and a device may add up in a different order each time: off the CPU the numeric rule decides.
    """
    yield from _differing(evidence, "buffers", partial(_as_computed, evidence))


@by_numeric_rule
def buffers_in_the_end(evidence: Evidence) -> Iterator[Finding]:
    """Yield buffers that differ from plain autograd's after the last action, as :func:`buffers_as_under_autograd`."""
    yield from _differing(evidence, "buffers", partial(_as_computed, evidence), since=-1)


def _differing(
    evidence: Evidence, what: str, alike: Callable[[Any, Any], bool], *, since: int = 0
) -> Iterator[Finding]:
    yield from raised(evidence.observation)
    sort, reported = _SORTS[what], set[str]()
    for step in evidence.observation.steps[since:]:
        wanted = evidence.oracle_step(step).state
        if step.state is None or wanted is None or getattr(step.state, what) is getattr(wanted, what):
            continue
        for name, got, expected in _entries(sort, getattr(step.state, what), getattr(wanted, what)):
            if name not in reported and not alike(got, expected):
                reported.add(name)
                text = f"differs from plain autograd{_numbers(got, expected)}"
                yield Finding("changed", name, str(step.action), text, sort=sort)


def _as_computed(evidence: Evidence, got: object, expected: object) -> bool:
    if same(got, expected):
        return True
    if evidence.materials.device.type == "cpu" or not isinstance(got, Tensor) or not isinstance(expected, Tensor):
        return False
    if got.shape != expected.shape or got.dtype != expected.dtype or not expected.is_floating_point():
        return False
    spread = evidence.spread.get(id(expected), 0.0)
    return judge_numbers(got, expected, None, Partials(), spread=spread).passed


def _entries(sort: Sort, got: Any, expected: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(got, dict):
        for name in {**expected, **got}:
            prefix = "" if sort == "thing" else f"{sort.removesuffix(' flag')} "
            yield f"{prefix}{name}", got.get(name), expected.get(name)
    else:
        yield "the random number generator", got, expected


def _numbers(got: object, expected: object) -> str:
    if isinstance(got, Tensor) and isinstance(expected, Tensor) and got.shape == expected.shape and got.numel() < 10:  # noqa: PLR2004 (as many as fit a line)
        return f": expected {expected.tolist()}, got {got.tolist()}"
    if not isinstance(got, Tensor):
        return f": expected {expected}, got {got}"
    return ""


def params_untouched_by_input_pass(evidence: Evidence) -> Iterator[Finding]:
    """Yield parameter gradients that an I changed."""
    yield from raised(evidence.observation)
    before: Step | None = None
    for step in evidence.observation.steps:
        if before is not None and step.action.kind == "I":
            for name, grad in step.param_grads.items():
                if not same(before.param_grads.get(name), grad):
                    yield _of_stored(name, step, "was changed by I")
        before = step


def _of_stored(name: str, step: Step, text: str) -> Finding:
    return Finding("changed", f"gradient of {name}", str(step.action), text, sort="parameter gradient")


@by_numeric_rule
def input_grad_attributes(evidence: Evidence) -> Judged:
    """Yield inputs whose ``.grad`` is neither None nor the input gradient."""
    yield from raised(evidence.observation)
    for step in evidence.observation.steps:
        wanted = evidence.oracle_step(step)
        if step.action.kind not in {"B", "I"} or step.arg_grads is None or wanted.input_grads is None:
            continue
        for slot, (got, expected) in enumerate(zip(step.arg_grads, wanted.input_grads, strict=True)):
            if got is not None:
                reference = one_of(evidence, step, "inputs", slot)
                explain = partial(likely_cause.of_input_value, evidence, slot, step)
                yield from compare_in(
                    evidence, step, ".grad of an input", f".grad of input {slot}", got, expected, reference, explain
                )


def returned_stays(evidence: Evidence) -> Iterator[Finding]:
    """Yield returned gradients that changed after they were returned."""
    yield from changed_later(evidence, "input gradient")


def changed_later(evidence: Evidence, sort: Sort) -> Iterator[Finding]:
    """Yield what changed after it was returned: tensors of one sort, which the trial watches."""
    yield from raised(evidence.observation)
    for name in evidence.observation.changed_later:
        yield Finding("changed", name, "", "changed after it was returned", sort=sort)


def returned_contiguous(evidence: Evidence) -> Iterator[Finding]:
    """Yield returned input gradients that are not contiguous; all arguments of the trial are."""
    yield from raised(evidence.observation)
    for step in evidence.observation.steps:
        for slot, grad in enumerate(step.input_grads or ()):
            if grad is not None and grad.layout == torch.strided and not grad.is_contiguous():
                text = f"is not contiguous: shape {tuple(grad.shape)}, strides {grad.stride()}"
                yield Finding("layout", f"input {slot}", str(step.action), text, sort="input gradient")


def stored_separately(evidence: Evidence) -> Iterator[Finding]:
    """Yield parameter gradients that share storage with anything else."""
    return _shared(evidence, of_params=True)


def returned_separately(evidence: Evidence) -> Iterator[Finding]:
    """Yield returned input gradients that share storage with anything but a parameter gradient."""
    return _shared(evidence, of_params=False)


def _shared(evidence: Evidence, *, of_params: bool) -> Iterator[Finding]:
    yield from raised(evidence.observation)
    reported: set[tuple[str, str]] = set()
    for step in evidence.observation.steps:
        usual = evidence.oracle_step(step).shared  # plain autograd stores a view of the output gradient as it arrived
        stored = {f"gradient of {name}" for name in step.param_grads}
        for pair in step.shared:
            if pair not in reported and pair not in usual and of_params != stored.isdisjoint(pair):
                reported.add(pair)
                sort: Sort = "parameter gradient" if pair[0] in stored else "input gradient"
                yield Finding("shared", pair[0], str(step.action), f"shares storage with {pair[1]}", sort=sort)


def upstream_goes_on(evidence: Evidence) -> Iterator[Finding]:
    """Yield gradients that an earlier graph, whose outputs a stage received, did not get from the input gradients."""
    yield from raised(evidence.observation)
    for step in evidence.observation.steps:
        for name, text in step.upstream.items():
            yield Finding("changed", name, str(step.action), text, sort="thing")


def stored_as_laid_out(evidence: Evidence) -> Iterator[Finding]:
    """Yield parameter gradients whose memory layout differs from plain autograd's."""
    yield from raised(evidence.observation)
    reported: set[str] = set()
    for step in evidence.observation.steps:
        wanted = evidence.oracle_step(step).param_grads
        for name, grad in step.param_grads.items():
            expected = wanted.get(name)
            if name in reported or not (_is_strided(grad) and _is_strided(expected)) or grad.shape != expected.shape:
                continue
            if grad.stride() != expected.stride():
                reported.add(name)
                text = f"expected strides {expected.stride()}, got {grad.stride()}"
                yield Finding("layout", name, str(step.action), text, sort="parameter gradient")


def _is_strided(grad: Tensor | None) -> TypeGuard[Tensor]:
    return grad is not None and grad.layout is torch.strided


def accumulates_in_place(evidence: Evidence) -> Iterator[Finding]:
    """Yield parameter gradients that move to other storage while gradients are added to them."""
    yield from raised(evidence.observation)
    addresses: dict[str, int] = {}
    for step in evidence.observation.steps:
        for name, address in step.grad_addresses.items():
            if addresses.setdefault(name, address) != address:
                addresses[name] = address
                yield _of_stored(name, step, "moved to other storage")


@by_numeric_rule
def weight_result(evidence: Evidence) -> Judged:
    """Yield entries of W's result that are neither the gradient after it nor what this W added."""
    yield from raised(evidence.observation)
    results = [step for step in evidence.observation.steps if step.action.kind == "W" and not step.raised]
    if results and all(step.weight_result is None for step in results):
        msg = "W returns nothing"
        raise RefusedError(msg)
    for step in results:
        names = list(step.param_grads)
        result = step.weight_result or ()
        if len(result) != len(names):
            text = f"expected one entry per parameter ({len(names)}), got {len(result)}"
            yield Finding("shape", "the tuple W returns", str(step.action), text)
            continue
        own = evidence.reference(step.action.stage, step.action.mb, step.position).params
        for name, got in zip(names, result, strict=True):
            expected = evidence.oracle_step(step).param_grads[name]
            explain = partial(likely_cause.of_weight_result, evidence, name, step)
            where = f"what W returns for {name}"
            seen = list(compare_in(evidence, step, "entry of what W returns", where, got, expected, None, explain))
            if not findings_in(seen) or not near(got, own[name]):  # how far its own is from the sum says nothing
                yield from seen


def bit_equal(evidence: Evidence) -> Iterator[Finding]:
    """Yield gradients that differ between repeats; raise ``UnsupportedError`` where plain autograd's do too."""
    if evidence.oracle_again is not None and list(_differences(evidence.oracle, evidence.oracle_again)):
        msg = "plain autograd does not repeat itself bit by bit on this device"
        raise UnsupportedError(msg)
    for repeat, observation in enumerate(evidence.observations):
        yield from raised(observation)
        for sort, where, action in _differences(evidence.observation, observation):
            text = f"is not bit-equal to the first run in repeat {repeat} of {len(evidence.observations)}"
            yield Finding("not_repeatable", where, action, text, sort=sort)
            return


def same_bits(observations: tuple[Observation, ...]) -> bool | None:
    """Return whether all repeats of a trial gave the same bits; None if it ran once."""
    if len(observations) == 1:
        return None
    return not any(list(_differences(observations[0], other)) for other in observations[1:])


def _differences(one: Observation, other: Observation) -> Iterator[tuple[Sort, str, str]]:
    for first, second in zip(one.steps, other.steps, strict=False):
        for slot, (a, b) in enumerate(zip(first.input_grads or (), second.input_grads or (), strict=False)):
            if not same(a, b):
                yield "input gradient", f"input {slot}", str(first.action)
        for name, grad in first.param_grads.items():
            if not same(grad, second.param_grads.get(name)):
                yield "parameter gradient", name, str(first.action)
