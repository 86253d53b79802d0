"""Diagnosis: what a wrong gradient is made of, found by computing, and said in one clause.

A wrong value is compared with what a mistake would make of the right ones: another combination of the micro-batches'
gradients (least squares), another slot's gradient, a transpose, a rounding, a scale. Where nothing fits, nothing is
said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradconform.evidence import Evidence
from gradconform.observation import Step
from gradconform.reference64 import uses_of, widen

#: How near a coefficient has to be to a whole number or a simple fraction to be called one.
_SNAP = 2e-3


@dataclass(frozen=True, slots=True)
class Part:
    """One thing a gradient may be made of: its name, its float64 value, and how often it belongs in."""

    name: str
    value: Tensor
    wanted: float


def of_param(evidence: Evidence, name: str, step: Step, got: Tensor) -> str | None:
    """Return the likely cause of a wrong gradient of parameter ``name`` after ``step``, or None."""
    parts = list(_param_parts(evidence, name, step))
    expected = sum_of(parts)
    return _first(
        lambda: _combination(evidence, parts, got, step),
        lambda: _shape_or_value(got, expected),
        lambda: _equals(got, _other_params(evidence, name, step), "parameters are mixed up"),
        lambda: _uses(evidence, name, step, got, expected),
    )


def of_input(evidence: Evidence, slot: int, step: Step, got: Tensor) -> str | None:
    """Return the likely cause of a wrong gradient of input ``slot`` returned by ``step``, or None."""
    lane, mb = step.action.stage, step.action.mb
    parts = list(_input_parts(evidence, slot, step))
    grads = evidence.reference(lane, mb).inputs
    others = {f"the gradient of input {i}": g for i, g in enumerate(grads) if i != slot and g is not None}
    outputs = {
        f"output gradient {i}": widen(g)
        for i, g in enumerate(_output_grads(evidence, lane, mb))
        if isinstance(g, Tensor)
    }
    return _first(
        lambda: _equals(got, others, "slots are swapped or shifted"),
        lambda: _combination(evidence, parts, got, step),
        lambda: _shape_or_value(got, sum_of(parts)),
        lambda: _equals(got, outputs, "handed on as it came"),
    )


def sum_of(parts: list[Part]) -> Tensor | None:
    """Return the right value: every part as often as it belongs in."""
    wanted = [part.value * part.wanted for part in parts if part.wanted]
    return torch.stack(wanted).sum(0) if wanted else None


def _first(*causes: Callable[[], str | None]) -> str | None:
    """Return the first cause that fits; those behind it are not computed."""
    return next((found for cause in causes if (found := cause())), None)


def _dense(tensor: Tensor) -> Tensor:
    return tensor.to_dense() if tensor.layout != torch.strided else tensor


def _param_parts(evidence: Evidence, name: str, step: Step) -> Iterator[Part]:
    lane = step.action.stage
    done: dict[int, float] = {}
    cleared = False
    for action in evidence.trial.actions[: step.position + 1]:
        if action.stage == lane and not action.misuse and action.kind in {"B", "W"}:
            done[action.mb] = done.get(action.mb, 0.0) + 1.0
        elif action.kind in {"zero_none", "zero_fill"}:
            done, cleared = dict.fromkeys(done, 0.0), True
    if evidence.trial.prior_grads:
        names = list(evidence.reference(lane, 0).params)
        prior = widen(evidence.materials.prior(lane)[names.index(name)])
        yield Part("what was there before", prior, 0.0 if cleared else 1.0)
    for mb in sorted({a.mb for a in evidence.trial.actions if a.kind == "F" and a.stage == lane}):
        grad = evidence.reference(lane, mb).params.get(name)
        if grad is not None:
            yield Part(f"micro-batch {mb}", _dense(grad), done.get(mb, 0.0))


def _input_parts(evidence: Evidence, slot: int, step: Step) -> Iterator[Part]:
    lane = step.action.stage
    for mb in sorted({a.mb for a in evidence.trial.actions if a.kind == "F" and a.stage == lane}):
        grad = evidence.reference(lane, mb).inputs[slot]
        if grad is not None:
            yield Part(f"micro-batch {mb}", grad, float(mb == step.action.mb))


def _other_params(evidence: Evidence, name: str, step: Step) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for other in evidence.reference(step.action.stage, 0).params:
        total = None if other == name else sum_of(list(_param_parts(evidence, other, step)))
        if total is not None:
            found[f"the gradient of {other}"] = total
    return found


def _output_grads(evidence: Evidence, lane: int, mb: int) -> tuple[object, ...]:
    if evidence.trial.loss_at(lane):
        return ()
    if evidence.trial.chain and lane + 1 < len(evidence.trial.stages):
        return evidence.reference(lane + 1, mb).inputs
    grads = evidence.materials.output_grads(lane, mb)
    return tuple(grads) if isinstance(grads, (tuple, list)) else tuple(grads.values())


def _tolerance(dtype: torch.dtype) -> float:
    return max(16.0 * torch.finfo(dtype).eps, 1e-12)


def _near(got: Tensor, wanted: Tensor, tolerance: float) -> bool:
    if got.shape != wanted.shape or not got.numel() or not bool(torch.isfinite(got.abs()).all()):
        return False
    size = float(wanted.abs().max())
    return size > 0.0 and float((got - wanted).abs().max()) <= tolerance * size


def _combination(evidence: Evidence, parts: list[Part], got: Tensor, step: Step) -> str | None:
    """Solve for ``got`` as a combination of the parts, and name what differs from the right one."""
    wide = widen(got)
    if not parts or any(part.value.shape != wide.shape for part in parts) or wide.numel() < len(parts):
        return None
    if not bool(torch.isfinite(wide.abs()).all()):
        return None
    columns = torch.stack([_flat(part.value) for part in parts], dim=1)
    found = torch.linalg.lstsq(columns, _flat(wide).unsqueeze(1), driver="gelsd").solution.squeeze(1)
    rebuilt = columns @ found
    scale = float(columns.abs().max())
    if scale == 0.0 or float((rebuilt - _flat(wide)).abs().max()) > _tolerance(got.dtype) * scale:
        return None
    coefficients = {part.name: float(c) for part, c in zip(parts, found, strict=True)}
    wanted = {part.name: part.wanted for part in parts}
    factors = _factors(evidence, step)
    return name_combination(coefficients, wanted, factors)


def _flat(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor).reshape(-1) if tensor.is_complex() else tensor.reshape(-1)


def _factors(evidence: Evidence, step: Step) -> dict[str, float]:
    """Return the numbers by which a gradient is most often divided by mistake."""
    count = evidence.trial.microbatches(step.action.stage)
    outputs = evidence.materials.example_outputs(step.action.stage)
    batch = next(
        (
            leaf.shape[0]
            for leaf in (outputs if isinstance(outputs, tuple) else (outputs,))
            if isinstance(leaf, Tensor) and leaf.dim()
        ),
        1,
    )
    return {"the number of micro-batches": float(count), "the batch size": float(batch)}


def name_combination(
    coefficients: Mapping[str, float], wanted: Mapping[str, float], factors: Mapping[str, float]
) -> str | None:
    """Name in what ``coefficients`` differ from ``wanted``; ``factors`` are numbers that may have been divided by."""
    present = [name for name, count in wanted.items() if count]
    absent = [name for name in wanted if name not in present]
    stray = [name for name in absent if abs(coefficients[name]) > _SNAP]
    values = [coefficients[name] / wanted[name] for name in present]
    if present and not stray and max(values) - min(values) <= _SNAP * max(map(abs, values), default=0.0):
        return _scale(sum(values) / len(values), present, factors)
    missing = [name for name in present if abs(coefficients[name]) <= _SNAP]
    twice = [name for name in coefficients if abs(coefficients[name] - wanted[name] - 1.0) <= _SNAP and wanted[name]]
    kept = [name for name in present if name not in missing]
    as_wanted = all(abs(coefficients[name] - wanted[name]) <= _SNAP for name in kept if name not in twice)
    added = [name for name in stray if abs(coefficients[name] - 1.0) <= _SNAP]
    if not as_wanted or len(added) != len(stray):
        terms = " + ".join(f"{value:.3g} × {name}" for name, value in coefficients.items() if abs(value) > _SNAP)
        return f"it is {terms}"
    if missing and added:
        return f"{_and(added)} in place of {_and(missing)}: contexts are swapped"
    if missing and len(kept) == 1 and len(present) > 1 and kept[0] == present[-1]:
        return f"only {kept[0]}: overwritten instead of accumulated"
    if missing and len(kept) == 1 and len(present) > 2:  # noqa: PLR2004 (of three or more, one is left)
        return f"only {kept[0]}: the others are missing"
    told = [f"{_and(missing)} missing"] if missing else []
    told += [f"{coefficients[name]:.1f} × {name}: counted twice" for name in twice]
    told += [f"{_and(added)} added as well: a running sum, or before its turn"] if added else []
    return "; ".join(told) or None


def _scale(  # noqa: PLR0911 (one return per cause)
    factor: float, present: list[str], factors: Mapping[str, float]
) -> str | None:
    if abs(factor) <= _SNAP:
        return "it is zero"
    if abs(factor - 1.0) <= 1e-2:  # noqa: PLR2004 (a percent: an error of rounding, not of counting)
        return f"a relative error of {abs(factor - 1.0):.2g} everywhere" if abs(factor - 1.0) > 1e-15 else None  # noqa: PLR2004 (as said beside it)
    for name, number in factors.items():
        if number > 2.0 and abs(factor * number - 1.0) <= _SNAP:  # noqa: PLR2004 (a half has too many causes)
            return f"scaled by 1/{number:.0f}: divided by {name}"
    if abs(factor - 2.0) <= _SNAP:
        return f"2.0 × {_and(present)}: counted twice"
    for name, number in factors.items():
        if number > 2.0 and abs(factor / number - 1.0) <= _SNAP:  # noqa: PLR2004 (as above)
            return f"scaled by {number:.0f}: multiplied by {name}"
    if abs(factor + 1.0) <= _SNAP:
        return "the sign is reversed"
    return f"scaled by {factor:.4g}"


def _and(names: list[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"{', '.join(names[:-1])} and {names[-1]}"  # noqa: PLR2004 (as said beside it)


def _equals(got: Tensor, others: Mapping[str, Tensor], cause: str) -> str | None:
    wide = widen(_dense(got))
    for name, other in others.items():
        if _near(wide, _dense(other), _tolerance(got.dtype)):
            return f"equals {name}: {cause}"
    return None


def _shape_or_value(  # noqa: PLR0911 (one return per cause)
    got: Tensor, expected: Tensor | None
) -> str | None:
    """Name a transpose, a conjugate, a rounding through another dtype, a single wrong element, a clipping."""
    if expected is None or got.shape != expected.shape or not got.numel():
        return None
    wide = widen(got)
    tolerance = _tolerance(got.dtype)
    if got.dim() == 2 and got.shape[0] == got.shape[1] and _near(wide, expected.T, tolerance):  # noqa: PLR2004 (a matrix)
        return "transposed"
    if got.is_complex() and _near(wide, expected.conj().resolve_conj(), tolerance):
        return "conjugated"
    size = float(expected.abs().max())
    wrong = (wide - expected).abs() > tolerance * max(size, 1e-30)
    count = int(wrong.sum())
    if count == 1 and got.numel() > 2:  # noqa: PLR2004 (of more than two)
        return f"one element of {got.numel()} is wrong"
    rounded = _rounded_through(got)
    if rounded is not None and _near(wide, expected, 2.0 * torch.finfo(rounded).eps):
        return f"rounded to {str(rounded).removeprefix('torch.')}"
    largest = wide.abs().max()
    if count and size > float(largest) > 0.0 and bool((wide.abs()[wrong] >= 0.999 * largest).all()):
        return f"clipped at {float(largest):.3g}"
    if 0 < count < got.numel() and bool((wide[wrong] == 0).all()):
        return f"{count} of {got.numel()} elements are zero"
    return None


def _rounded_through(got: Tensor) -> torch.dtype | None:
    """Return the narrower dtype whose values are all that ``got`` holds, or None."""
    if got.is_complex():
        return None
    for narrow in (torch.bfloat16, torch.float16, torch.float32):
        if torch.finfo(narrow).eps > torch.finfo(got.dtype).eps and torch.equal(got.to(narrow).to(got.dtype), got):
            return narrow
    return None


def _uses(evidence: Evidence, name: str, step: Step, got: Tensor, expected: Tensor | None) -> str | None:
    """Name a tied parameter of which one use is missing, or counted more than once."""
    lane, mb = step.action.stage, step.action.mb
    if expected is None or step.action.kind not in {"B", "W"}:
        return None
    uses = uses_of(evidence.materials, lane, mb, name, evidence.loss_scale)
    if len(uses) < 2:  # noqa: PLR2004 (a tie takes two)
        return None
    whole = torch.stack(uses).sum(0)
    parts = [Part(f"use {i}", use, 1.0) for i, use in enumerate(uses)]
    columns = torch.stack([_flat(part.value) for part in parts], dim=1)
    rest = _flat(widen(_dense(got)) - (expected - whole))
    found = torch.linalg.lstsq(columns, rest.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    if float((columns @ found - rest).abs().max()) > _tolerance(got.dtype) * float(columns.abs().max()):
        return None
    counts = [float(c) for c in found]
    told = [f"use {i} counted {count:.3g} times" for i, count in enumerate(counts) if abs(count - 1.0) > _SNAP]
    missing = [i for i, count in enumerate(counts) if abs(count) <= _SNAP]
    if len(missing) == len(told) and missing:
        return f"{len(uses) - len(missing)} of the {len(uses)} uses of the tied parameter: the others are missing"
    return f"of the {len(uses)} uses of the tied parameter, {', '.join(told)}" if told else None
