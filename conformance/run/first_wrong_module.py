"""Finds the first module of a user's stage whose backward differs from plain autograd's."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradconform.adapter import Adapter
from gradconform.contract.check import Check
from gradconform.contract.extra_ids import is_on_named_stage
from gradconform.drive.boundaries import Boundaries, Call, WatchedMaterials
from gradconform.drive.driver import drive
from gradconform.judge.finding import OF_VALUES, Finding
from gradconform.process.interrupts import pass_on_an_interrupt
from gradconform.reference.autograd import AutogradAdapter
from gradconform.text.findings import alike
from gradconform.tolerance import FAR, Partials, judge
from gradconform.trial.trial import Trial

#: How many of the modules that share the tensor with the wrong gradient are named.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class FirstWrongModule:
    """The module in which gradients first differ, and how; ``parameters`` are those that show it, all if empty."""

    text: str
    parameters: frozenset[str] = frozenset()

    def shows_in(self, finding: Finding) -> bool:
        """Return whether a finding follows from it: a wrong gradient spoils all later ones."""
        of_parameter = finding.sort == "parameter gradient" and finding.where in self.parameters
        return finding.kind in OF_VALUES and (of_parameter or not self.parameters)


@dataclass(frozen=True, slots=True)
class FirstWrongModules:
    """Finds first wrong modules on one device and dtype, once for similar findings on a stage and the same tensors."""

    adapter: Adapter
    dtype: torch.dtype
    device: torch.device
    seed: int
    known: dict[tuple[Hashable, ...], FirstWrongModule | None]

    def annotate(self, check: Check, trial: Trial, findings: list[Finding]) -> list[Finding]:
        """Return the findings of a check with the module in which they begin, if the boundaries show one."""
        of_values = [one for one in findings if one.kind in OF_VALUES]
        if not is_on_named_stage(check.id) or trial.chain or not of_values:
            return findings
        wrong = frozenset(one.where for one in of_values if one.sort == "parameter gradient")
        key = (trial.stages[0].name, trial.program, alike(of_values[0].to_dict()), wrong)
        if key not in self.known:
            self.known[key] = self._find(trial, wrong)
        found = self.known[key]
        if found is None:
            return findings
        return [
            replace(one, needs={**(one.needs or {}), "departs": found.text}) if found.shows_in(one) else one
            for one in findings
        ]

    def _find(self, trial: Trial, wrong: frozenset[str]) -> FirstWrongModule | None:
        try:
            return first_wrong_module(self._noted(AutogradAdapter(), trial), self._noted(self.adapter, trial), wrong)
        except BaseException as error:  # noqa: BLE001 (the failure itself is reported in any case)
            pass_on_an_interrupt(error)
            return None

    def _noted(self, adapter: Adapter, trial: Trial) -> Boundaries:
        materials = WatchedMaterials(trial, dtype=self.dtype, device=self.device, seed=self.seed)
        drive(adapter, materials)
        return materials.boundaries


def first_wrong_module(right: Boundaries, got: Boundaries, parameters: frozenset[str]) -> FirstWrongModule | None:
    """Return the module in which gradients first differ; None if none is wrong at a boundary.

    ``parameters`` are the names of those whose gradient is wrong. If an implementation runs more forwards than plain
    autograd, for example each again in its backward, the result is None. Such forwards cannot be matched.
    """
    if got.calls.keys() != right.calls.keys():
        return None
    for forward, calls in right.calls.items():
        if got.calls[forward] != calls:
            continue
        wrong = dict(_wrong(right.gradients[forward], got.gradients[forward]))
        found = [call for call in reversed(calls) if call.path and _departs(call, wrong, parameters)]
        innermost = [call for call in found if not any(other.path.startswith(f"{call.path}.") for other in found)]
        if innermost:
            return _of_calls(innermost, wrong, parameters)
    return None


def _wrong(right: Mapping[int, list[Tensor]], got: Mapping[int, list[Tensor]]) -> Iterator[tuple[int, str]]:
    """Yield the numbers of tensors whose gradient is wrong, and the kind of the error."""
    for number, gradients in right.items():
        several = got.get(number)
        if not several:
            yield number, "missing"
        elif not any(_near(one, gradients[0]) for one in (*several, torch.stack(several).sum(0))):
            yield number, "wrong"


def _near(got: Tensor, right: Tensor) -> bool:
    if got.shape != right.shape or got.dtype != right.dtype:
        return False
    finite = torch.isfinite(right.abs())
    return bool((torch.isfinite(got.abs()) == finite).all()) and judge(got, right, None, Partials(), factor=FAR).passed


def _departs(call: Call, wrong: Mapping[int, str], parameters: frozenset[str]) -> bool:
    """Return whether the gradients of a call's outputs are right, and one of its inputs or own parameters is not."""
    if not call.outputs or any(number in wrong for number in call.outputs):
        return False
    return any(number in wrong for number in call.inputs) or not parameters.isdisjoint(call.parameters)


def _of_calls(calls: Sequence[Call], wrong: Mapping[int, str], parameters: frozenset[str]) -> FirstWrongModule:
    """Return the first wrong module: that of the first of ``calls``, and for those that share its wrong input."""
    first = calls[0]
    own = [name for name in first.parameters if name in parameters]
    inputs = [number for number in first.inputs if number in wrong]
    if own and not inputs:
        names = ", ".join(name.removeprefix(f"{first.path}.") for name in own)
        return FirstWrongModule(
            f"{first.path} (right at its output and its input, wrong in its {names})", frozenset(own)
        )
    sharing = [call for call in calls if set(inputs) & set(call.inputs)]
    with_own = [call for call in sharing if not parameters.isdisjoint(call.parameters)]
    paths = list(dict.fromkeys(call.path for call in with_own or sharing))
    more = f" or {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return FirstWrongModule(
        f"{' or '.join(paths[:_NAMED])}{more} (right at its output, {wrong[inputs[0]]} at its input)"
    )
