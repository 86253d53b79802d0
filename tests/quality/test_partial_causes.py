"""A cause of several failures says only what is true of each: no mistake is named that explains a part of a failure."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform import Capabilities, check_stage_backward
from gradconform.reference import split
from gradconform.reference.autograd import AutogradSession
from gradconform.report.single_mistakes import causes_of


class LastLinearSkipped(AutogradSession):
    """W gives the last of several Linears nothing, neither its weight nor its bias; other stages are right."""

    def backward_weight(self, mb: int) -> None:
        edges, starts = self._weight_roots.pop(mb)
        linears = [module for module in self._stage.modules() if isinstance(module, nn.Linear)]
        skipped = {id(one) for one in linears[-1].parameters()} if len(linears) > 1 else set()
        given = [one for one in self._parameters.values() if one.requires_grad and id(one) not in skipped]
        if given and edges:
            torch.autograd.backward(edges, starts, inputs=given)


def likely_causes(target: object, *checks: str) -> set[str]:
    report = check_stage_backward(target, checks=checks)
    assert len(report.failures) > 3
    return {group.likely for group in causes_of(report.failures)}


def test_a_mistake_that_selects_too_few_of_the_wrong_parameters_is_not_named() -> None:
    target = SimpleNamespace(name="skips", capabilities=Capabilities(), open=LastLinearSkipped)
    found = likely_causes(target, "split.gradients.*", "grad_tuple.*split", "caller.buffer.*")
    # The bias is the last parameter, and the weight is a matrix, but both are wrong.
    assert [text for text in found if "last parameter" in text or "two or more dimensions" in text] == []


class OnlyMatrices(AutogradSession):
    """W gives parameters of two dimensions nothing, and on stages of at least three Linears no parameter anything."""

    def backward_weight(self, mb: int) -> None:
        edges, starts = self._weight_roots.pop(mb)
        many = sum(isinstance(module, nn.Linear) for module in self._stage.modules()) > 2
        given = [one for one in self._parameters.values() if one.requires_grad and one.dim() < 2 and not many]
        if given and edges:
            torch.autograd.backward(edges, starts, inputs=given)


def test_a_failure_does_not_inherit_the_parameters_of_another_one() -> None:
    target = SimpleNamespace(name="matrices", capabilities=Capabilities(), open=OnlyMatrices)
    report = check_stage_backward(target, checks=("accumulate.*split", "split.gradients.*"))
    named = {
        result.check: sorted(str(one["mistake"]["kind"]) for one in result.undone)
        for result in report.failures
        if result.undone
    }
    biases = {
        result.check
        for result in report.failures
        for finding in result.findings
        if str(finding["where"]).endswith("bias") and finding["kind"] in {"missing", "mismatch"}
    }
    assert "matrices_skipped" in {kind for kinds in named.values() for kind in kinds}
    assert len(biases) > 3
    assert {check for check in biases & named.keys() if "matrices_skipped" in named[check]} == set()


def scaled(*arguments: Any, **options: Any) -> tuple[Tensor | None, ...]:
    return tuple(one if one is None else one * 1.01 for one in split.stage_backward(*arguments, **options))


def test_a_relative_error_larger_than_a_dtype_s_is_not_rounding_to_it() -> None:
    found = likely_causes(SimpleNamespace(stage_backward=scaled), "full.gradients.*", "space.full.one-gradient-twice-1")
    assert [text for text in found if "rounded" in text] == []
    assert any("a relative error of 0.01 everywhere" in text for text in found)


class OddScaled(AutogradSession):
    """B and W of micro-batch 1 add one and a half of its gradients."""

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        found = self.backward_input(mb, output_grads)
        self.backward_weight(mb)
        return found

    def backward_weight(self, mb: int) -> None:
        before = {name: one.grad for name, one in self._parameters.items()}
        for one in self._parameters.values():
            one.grad = None
        super().backward_weight(mb)
        for name, one in self._parameters.items():
            own, held = one.grad, before[name]
            own = own * 1.5 if own is not None and mb == 1 else own
            one.grad = own if held is None else held if own is None else held + own


def test_one_defect_after_b_and_after_w_is_one_cause() -> None:
    target = SimpleNamespace(name="odd", capabilities=Capabilities(), open=OddScaled)
    report = check_stage_backward(target, checks=("accumulate.in_flight.*", "full.gradients.mlp*", "split.loss.mlp"))
    (group,) = causes_of(report.failures)
    assert group.text == (
        "after B or W, a parameter gradient has a wrong value; likely cause: micro-batch 1: scaled by 1.5"
    )
    assert {"accumulate.in_flight.full", "accumulate.in_flight.split"} <= group.checks.keys()


class _SavesInItsOwnWay(AutogradSession):
    """Linears read what they saved in the backward, as a Function does that keeps it in attributes."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(*self.ways()):
            return super().forward(mb, args, target)

    def ways(self) -> tuple[Any, Any]:
        raise NotImplementedError


class ActivationsInAttributes(_SavesInItsOwnWay):
    def ways(self) -> tuple[Any, Any]:
        return Tensor.detach, lambda held: held


class WeightsOfNow(_SavesInItsOwnWay):
    def ways(self) -> tuple[Any, Any]:
        owners = {one.data_ptr(): one for one in self._stage.parameters()}

        def pack(tensor: Tensor) -> Any:
            owner = owners.get(tensor.data_ptr())
            return tensor if owner is None else (owner, tensor.shape, tensor.stride())

        return pack, lambda held: held if isinstance(held, Tensor) else held[0].data.as_strided(*held[1:])


@pytest.mark.parametrize(
    ("session", "check", "likely"),
    [
        (ActivationsInAttributes, "argument", "the backward reads saved tensors that the caller has written to since"),
        (WeightsOfNow, "data", "the backward reads the weights from their parameters, which the caller has changed"),
    ],
)
def test_one_check_suffices_to_name_what_reads_values_that_the_caller_has_changed(
    session: type[AutogradSession], check: str, likely: str
) -> None:
    target = SimpleNamespace(name="late", capabilities=Capabilities(), open=session)
    report = check_stage_backward(target, checks=(f"state.before_backward.{check}",))
    (group,) = causes_of(report.failures)
    assert group.likely.startswith(likely)
    assert group.gone is None or group.gone.causes


class GradModeLeftOn(AutogradSession):
    """W records operations from then on, which no caller sees who had not turned it off."""

    def backward_weight(self, mb: int) -> None:
        torch.set_grad_enabled(True)
        super().backward_weight(mb)


def test_a_setting_that_a_call_changes_within_a_mode_of_its_caller_is_reported() -> None:
    target = SimpleNamespace(name="recording", capabilities=Capabilities(), open=GradModeLeftOn)
    report = check_stage_backward(target, checks=("space.split.half-input-1", "state.process.*", "mode.gradients.no-*"))
    (failed,) = report.failures
    found = {(one["where"], one["text"]) for one in failed.findings}
    assert failed.check == "space.split.half-input-1"
    text = "differs from plain autograd: expected as before, got True instead of False"
    assert found == {("grad mode in the modes of the call", text)}


class Doubled(AutogradSession):
    """Every parameter gradient of a stage with more than one layer is reported twice as large."""

    def param_grads(self) -> dict[str, Tensor | None]:
        grads = super().param_grads()
        return {name: None if grad is None else grad * min(2, len(grads) - 1) for name, grad in grads.items()}


def test_a_parameter_that_was_frozen_in_a_backward_misses_nothing_of_its_micro_batch() -> None:
    target = SimpleNamespace(name="doubled", capabilities=Capabilities(), open=Doubled)
    report = check_stage_backward(target, checks=("steps.frozen.in-flight-full",))
    (result,) = report.failures
    assert [str(finding["cause"]["text"]) for finding in result.findings] == [
        *["2.0 × micro-batch 0: counted twice"] * 3,
        "2.0 × micro-batch 1: counted twice",
    ]
