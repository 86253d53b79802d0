"""Compares one tensor with plain autograd's, by form, by NaN and inf, and by the numeric rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from gradconform.diagnosis import nonfinite
from gradconform.judge.finding import Finding, Kind
from gradconform.tolerance import Partials, describe
from gradconform.tolerance import judge as judge_numbers

#: Gives the gradient in float64, or None where plain autograd itself is the reference, and the partial sums met.
Reference = Callable[[], tuple[Tensor | None, Partials]]
#: Gives the likely cause of what came, None for nothing; None where there is no telling.
Explain = Callable[[Tensor | None], str | None]


class Headrooms(Protocol):
    """What keeps the ratio of error to bound of every tensor that was compared: an evidence, say.

    ``zeros_for_none`` says that zeros may stand where plain autograd has None; ``spread`` how far two runs of plain
    autograd are apart, by the id of its tensor.
    """

    headrooms: list[float]
    spread: dict[int, float]

    @property
    def factor(self) -> float:
        """How many times the bound is wider than the rule says."""
        ...

    @property
    def zeros_for_none(self) -> bool:
        """Whether they may."""
        ...


class HasAction(Protocol):
    """What was seen after an action: a step of a program, say."""

    @property
    def action(self) -> object:
        """The action, as text or as what prints as one."""
        ...


def compare(  # noqa: PLR0913, PLR0917 (a tensor, what it is held against, and what to say of it)
    evidence: Headrooms,
    step: HasAction,
    where: str,
    got: object,
    expected: object,
    reference: Reference | None,
    explain: Explain | None = None,
) -> Iterator[Finding]:
    """Yield what is wrong with one tensor; what is bit-equal to plain autograd is right without more ado.

    ``explain`` is asked for the likely cause of a tensor that is wrong, missing, of another shape, or not wanted.
    """
    if same_bits(got, expected):
        evidence.headrooms.append(0.0)
        return
    action = str(step.action)
    if not isinstance(expected, Tensor):
        if isinstance(got, Tensor) and not (evidence.zeros_for_none and not got.any()):
            text = f"expected None as from plain autograd, got {_summary(got)}"
            yield Finding("unexpected", where, action, text, cause=_cause(explain, got))
        return
    if not isinstance(got, Tensor):
        kind = "nothing" if got is None else f"{got!r}"
        cause = _cause(explain, None) if got is None else None
        yield Finding("missing", where, action, f"expected {_summary(expected)}, got {kind}", cause=cause)
        return
    differs = _form(got, expected)
    if differs is not None:
        cause = _cause(explain, got) if differs[0] == "shape" else None
        yield Finding(differs[0], where, action, differs[1], cause=cause)
        return
    if got.layout != torch.strided:
        got, expected = got.to_dense(), expected.to_dense()
        if torch.equal(got, expected):
            evidence.headrooms.append(0.0)
            return
    yield from _nonfinite(where, action, got, expected)
    for finding in _numbers(evidence, where, action, got, expected, reference):
        yield replace(finding, cause=_cause(explain, got))


def same_bits(got: object, expected: object) -> bool:
    """Tell whether both are dense tensors of one form and bit-equal: the common case, and a quick one."""
    return (
        isinstance(got, Tensor)
        and isinstance(expected, Tensor)
        and got.dtype is expected.dtype
        and got.layout is expected.layout is torch.strided
        and got.device == expected.device
        and got.shape == expected.shape
        and torch.equal(got, expected)
    )


def _cause(explain: Explain | None, got: Tensor | None) -> str | None:
    """Ask for the likely cause; a diagnosis that fails says so, and takes nothing from the verdict."""
    try:
        return None if explain is None else explain(got)
    except Exception as error:  # noqa: BLE001 (whatever it is, the gradient is wrong all the same)
        return f"the diagnosis failed: {type(error).__name__}: {error}"


def _form(got: Tensor, expected: Tensor) -> tuple[Kind, str] | None:
    kinds: tuple[Kind, ...] = ("shape", "dtype", "device", "layout")
    for name in kinds:
        one, other = getattr(got, name), getattr(expected, name)
        if one != other:
            shown = (tuple(other), tuple(one)) if name == "shape" else (other, one)
            return name, f"expected {name} {shown[0]}, got {shown[1]}"
    return None


def _nonfinite(where: str, action: str, got: Tensor, expected: Tensor) -> Iterator[Finding]:
    if not (got.is_floating_point() or got.is_complex()):
        return
    differs = (torch.isnan(got) != torch.isnan(expected)) | (torch.isinf(got) != torch.isinf(expected))
    if got.is_floating_point():
        differs |= torch.isposinf(got) != torch.isposinf(expected)
    count = int(differs.sum())
    if count:
        worst = tuple(int(i) for i in differs.nonzero()[0])
        text = f"at {list(worst)}: expected {describe(expected[worst])}, got {describe(got[worst])} ({count} elements)"
        cause = nonfinite.cause_of(got, expected, differs)
        yield Finding("nonfinite", f"{where} (NaN and inf)", action, text, cause=cause)


def _numbers(  # noqa: PLR0913, PLR0917 (as compare)
    evidence: Headrooms, where: str, action: str, got: Tensor, expected: Tensor, reference: Reference | None
) -> Iterator[Finding]:
    if not (got.is_floating_point() or got.is_complex()):
        text = f"expected the integers of plain autograd, {int((got != expected).sum())} elements differ"
        yield Finding("mismatch", where, action, text)
        return
    total, partials = (None, Partials()) if reference is None else reference()
    if expected.dtype in {torch.float64, torch.complex128}:
        total = None
    spread = evidence.spread.get(id(expected), 0.0)
    judged = judge_numbers(got, expected, total, partials, spread=spread, factor=evidence.factor)
    evidence.headrooms.append(judged.headroom)
    if judged.passed:
        return
    text = (
        f"worst at {list(judged.worst)}: expected {describe(expected[judged.worst])}, "
        f"got {describe(got[judged.worst])}; error {judged.error:.3g}, bound {judged.bound:.3g}, "
        f"headroom {judged.headroom:.3g}"
    )
    yield Finding("mismatch", where, action, text, judged.error, judged.bound, judged.headroom)


def _summary(tensor: Tensor) -> str:
    largest = float(tensor.to_dense().abs().max()) if tensor.numel() and tensor.dtype != torch.bool else 0.0
    return f"a tensor of shape {tuple(tensor.shape)}, largest element {largest:.3g}"
