"""A mistake in an adapter is told as the adapter's, with file and line, and no implementation is charged with it."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import pytest
from torch.distributed.pipelining import PipelineStage

from gradconform import check_stage_backward, reference
from gradconform.drive import adapter_mistake, oracle
from gradconform.reference import split
from gradconform.reference.autograd import AutogradSession
from gradconform.target import functions
from gradconform.target.loading import TargetNotInstalledError

CHECKS = ("full.gradients.mlp", "full.loss.mlp")


def gone(*_: Any, **__: Any) -> NoReturn:
    """Stand for a method that looks for what torch has renamed."""
    msg = "'PipelineStage' object has no attribute '_old_name'"
    raise AttributeError(msg)


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a method of torch's stages away."""
    for owner in PipelineStage.__mro__:
        if name in vars(owner):
            monkeypatch.delattr(owner, name)


@pytest.mark.parametrize("name", ["_prepare_backward_infra", "clear_runtime_states"])
def test_an_adapter_that_needs_a_removed_private_torch_name_is_unavailable(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(name, monkeypatch)
    monkeypatch.delitem(sys.modules, "gradconform.plugins.adapters.torch_stage", raising=False)
    with pytest.raises(TargetNotInstalledError, match=f"target 'torch-stage' is unsupported here: .* has no {name} in"):
        check_stage_backward("torch-stage", checks=CHECKS)


def test_a_removed_torch_name_is_an_error_of_the_kits_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "backward_one_chunk"
    without(name, monkeypatch)
    report = check_stage_backward("torch-stage", checks=CHECKS)
    for result in report.results:
        assert (result.status, result.kind) == ("error", "adapter")
        assert "the kit's adapter of torch-stage is wrong" in result.message
        assert "plugins/adapters/torch_stage.py:" in result.message
        assert f"AttributeError: 'PipelineStage' object has no attribute '{name}'" in result.message


def test_a_call_with_wrong_arguments_is_an_error_of_the_kits_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PipelineStage, "backward_one_chunk", lambda _, chunk: chunk)
    report = check_stage_backward("torch-stage", checks=CHECKS)
    assert {(result.status, result.kind) for result in report.results} == {("error", "adapter")}


def test_an_error_in_the_implementations_own_code_is_a_failure() -> None:
    report = check_stage_backward(SimpleNamespace(stage_backward=gone), checks=CHECKS)
    assert {result.status for result in report.results} == {"failed"}
    wrong = SimpleNamespace(stage_backward=split.stage_backward, stage_backward_weight=split.stage_backward_weight)
    wrong.stage_backward_input = lambda *args: split.stage_backward_input(*args)[0]
    report = check_stage_backward(wrong, checks="split.gradients.mlp")
    assert "stage_backward_input returned a tuple of length 1" in report.failures[0].message


def test_an_error_in_the_kits_calling_code_is_an_adapter_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(functions, "as_tuple")
    report = check_stage_backward(split, checks="full.gradients.mlp")
    assert [(result.status, result.kind) for result in report.results] == [("error", "adapter")]


class OfOneMicrobatch(AutogradSession):
    """Keeps the arguments of the latest micro-batch alone."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        self._forwards.clear()
        return super().forward(mb, args, target)

    def backward(self, mb: int, output_grads: Any) -> Any:
        assert self._forwards[mb] is not None
        return super().backward(mb, output_grads)


class OfInputsThatNeedGradients(AutogradSession):
    """Returns nothing at all for an argument that needs no gradient."""

    def backward(self, mb: int, output_grads: Any) -> Any:
        args, _ = self._forwards[mb]
        found = super().backward(mb, output_grads)
        return tuple(grad for grad, arg in zip(found, args, strict=True) if arg.requires_grad)


class OfLastNames(AutogradSession):
    """Names a parameter by the last of its names."""

    def param_grads(self) -> dict[str, Any]:
        names = {id(p): name for name, p in self._stage.named_parameters(remove_duplicate=False)}
        return {names[id(p)]: p.grad for p in self._parameters.values()}


class OfGradientsThatAreThere(AutogradSession):
    """Names no parameter without a gradient."""

    def param_grads(self) -> dict[str, Any]:
        return {name: grad for name, grad in super().param_grads().items() if grad is not None}


class OfLiveOutputs(AutogradSession):
    """Looks up the outputs of a micro-batch by what the caller holds."""

    _held: WeakValueDictionary[int, Any]

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        outputs = super().forward(mb, args, target)
        self._held = getattr(self, "_held", WeakValueDictionary())
        self._held[mb] = outputs
        return outputs

    def backward_weight(self, mb: int) -> None:
        assert self._held[mb] is not None
        super().backward_weight(mb)


@pytest.mark.parametrize(
    ("session", "said"),
    [
        (OfOneMicrobatch, "(a second micro-batch in flight, F0 F1 B0 B1): B0 raised KeyError: 0 at "),
        (OfInputsThatNeedGradients, "fixed, F0 B0): B0 returned 1 input gradient for 2 arguments"),
        (OfLastNames, "(one Linear under two names, F0 B0): after F0 param_grads() has no first.bias, first.weight"),
        (OfGradientsThatAreThere, "after F0 param_grads() has no first.bias, first.weight; its names: none"),
        (OfLiveOutputs, "(outputs that the caller frees, F0 I0 drop0 W0 F1 I1 drop1 W1): W0 raised KeyError: 0 at "),
    ],
)
def test_an_adapter_error_is_reported_before_any_check(session: Any, said: str) -> None:
    target = SimpleNamespace(name="mine", capabilities={}, open=session)
    report = check_stage_backward(target, checks=CHECKS)
    for result in report.results:
        assert (result.status, result.kind) == ("error", "adapter")
        assert said in result.message
    assert __file__ in report.results[0].message or "raised" not in said


def test_a_wrong_value_outside_the_pre_flight_is_a_failure_not_an_adapter_error() -> None:
    class OfTheOther(AutogradSession):
        def backward(self, mb: int, output_grads: Any) -> Any:
            return super().backward(max(self._forwards) if self._forwards else mb, output_grads)

    report = check_stage_backward(
        SimpleNamespace(name="mine", capabilities={}, open=OfTheOther), checks="accumulate.order.full-*"
    )
    assert {result.status for result in report.results} <= {"failed", "passed"}
    assert report.failures


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("torch-stage", "*.gradients.nontensor-inputs"),
        ("torch-stage", "state.weight_result.*"),
        ("megatron-core", "*.dict-output"),
    ],
)
def test_a_shipped_adapter_refuses_features_it_does_not_claim(name: str, checks: str) -> None:
    if name == "megatron-core":
        pytest.importorskip("megatron.core")
    report = check_stage_backward(name, checks=checks, probe=True)
    assert {result.status for result in report.results} == {"unsupported"}
    assert all("tried, and refused" in result.message for result in report.results)


#: Modules of the driver whose operations a program requires, or that use none: a device may lack those.
OF_PROGRAMS = {
    "adapter_mistake", "boundaries", "caller_acts", "cancellation", "evidence", "gradient_hooks", "main_grad",
    "observation", "oracle", "receive_buffers", "reference64", "returned_forms", "single_operation", "stage_changes",
    "stage_inputs", "upstream_graph", "user_stage",
}  # fmt: skip


def test_each_module_of_the_driver_watches_or_does_what_a_program_requires() -> None:
    folder = Path(oracle.__file__).parent
    watching = {Path(str(module.__file__)) for module in oracle.WATCHING}
    names = {path.stem for path in watching if path.parent == folder}
    assert names.isdisjoint(OF_PROGRAMS)
    assert names | OF_PROGRAMS == {path.stem for path in folder.glob("*.py")} - {"__init__"}


def test_every_adapter_of_the_kit_is_charged_with_its_mistakes_except_the_references() -> None:
    shipped = entry_points(group="gradconform.adapters")
    modules = {entry.module for entry in shipped if entry.module.startswith("gradconform.")}
    own = {module for module in modules if not module.startswith(reference.__name__)}
    assert own
    assert all(module.startswith(adapter_mistake._SHIPPED) for module in own)
