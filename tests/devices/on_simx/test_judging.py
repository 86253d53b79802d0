"""Who is accused: a faulty simx is told as the device's fault, a wrong implementation on a healthy one as its own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from gradconform.adapter import Adapter
from gradconform.drive import operation_log, oracle
from gradconform.drive.observation import Observation
from gradconform.drive.operation_log import OperationLog, number_tensor
from gradconform.fixtures.stages import ZOO
from gradconform.plugins.devices import simx
from gradconform.reference import split
from gradconform.report.terminal import closing
from gradconform.results import Report, Result
from gradconform.run.options import RunOptions
from gradconform.run.run import Run, check_stage_backward
from gradconform.trees import map_leaves
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

#: Cheap checks, by what they touch: products, a convolution, random numbers, buffers, repeats, views, None.
CHECKS = (
    "full.gradients.mlp",
    "split.gradients.mlp",
    "full.gradients.conv2d",
    "full.gradients.tied-apart",
    "state.buffers.batch-norm-split",
    "state.rng.dropout-split",
    "repeat.bit_equal.split",
    "lifetime.growth.split",
)


def run(target: object = "reference-split", dtype: str = "float32", device: str = "simx:0", **options: Any) -> Report:
    given = {"profile": "standard", "checks": CHECKS, **options}
    return check_stage_backward(target, device=device, dtype=dtype, **given)


def statuses(report: Report) -> set[tuple[str, str | None]]:
    return {(result.status, result.kind) for result in report.results}


def of(report: Report, check: str) -> Result:
    return next(result for result in report.results if result.check == check)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("device", ["simx:0", "simx:1"])
def test_a_right_implementation_passes_and_runs_on_a_healthy_device(device: str, dtype: str) -> None:
    report = run(dtype=dtype, device=device)
    assert statuses(report) == {("passed", None)}
    shares = [result.off_device_share for result in report.results]
    assert set(shares) == {0.0, None}
    assert shares.count(None) == sum(result.check.startswith("lifetime.") for result in report.results)
    assert all(result.oracle_spread is None for result in report.results)


def test_plain_autograd_is_logged_only_if_the_implementation_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    logged: list[str] = []

    def drive_logged(adapter: Adapter, materials: Materials, **options: Any) -> Observation:
        if operation_log.is_logged(materials):
            logged.append(materials.trial.program)
        return operation_log.drive_logged(adapter, materials, **options)

    monkeypatch.setattr(oracle, "drive_logged", drive_logged)
    assert statuses(run(checks=CHECKS[:2])) == {("passed", None)}
    assert logged == []
    assert statuses(run(Doubles, checks=CHECKS[:1])) == {("failed", "mismatch")}
    assert logged


@pytest.mark.parametrize(("target", "status"), [("reference-split", "passed"), ("Doubles", "failed")])
def test_if_a_log_changes_results_both_run_without_it(
    monkeypatch: pytest.MonkeyPatch, target: str, status: str
) -> None:
    dispatched = OperationLog.__torch_dispatch__

    def disturbed(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = dispatched(self, func, types, args, kwargs)
        return found * 2 if func is torch.ops.aten.addmm.default else found

    monkeypatch.setattr(OperationLog, "__torch_dispatch__", disturbed)
    report = run(Doubles if target == "Doubles" else target, checks=CHECKS[:1])
    assert {result.status for result in report.results} == {status}
    assert [result.off_device_share for result in report.results] == [None]


#: What is wrong with the device, the dtype, what the first line of a message says, and a check that must say it.
FAULTS: dict[str, tuple[dict[str, str], str, str, str]] = {
    "index": ({"wrong": "aten::addmm:index"}, "float32", "aten::addmm is wrong on simx:0 in float32", CHECKS[0]),
    "transpose": ({"wrong": "aten::mm:transpose"}, "float32", "aten::mm is wrong on simx:0 in float32", CHECKS[1]),
    "stale": ({"wrong": "aten::mm:stale"}, "float32", "aten::mm is wrong on simx:0 in float32", CHECKS[1]),
    "tf32": ({"tf32": "1"}, "float32", "aten::addmm is wrong on simx:0 in float32", CHECKS[0]),
    "tf32 convolution": ({"tf32": "1"}, "float32", "aten::convolution is wrong on simx:0 in float32", CHECKS[2]),
    "bfloat16 sums": ({"bfloat16_accumulate": "1"}, "bfloat16", "aten::mm is wrong on simx:0 in bfloat16", CHECKS[0]),
    "narrow": ({"narrow_float64": "1"}, "float64", "plain autograd is wrong on simx:0 in float64", CHECKS[0]),
    "unseeded": ({"unseeded": "1"}, "float32", "random numbers do not depend on the seed alone on", CHECKS[5]),
}


@pytest.mark.parametrize(("options", "dtype", "text", "check"), FAULTS.values(), ids=FAULTS)
def test_a_device_fault_is_a_device_error_and_not_a_failure_of_the_implementation(
    options: dict[str, str], dtype: str, text: str, check: str
) -> None:
    with simx.inject(**options):
        report = run(dtype=dtype)
    assert statuses(report) <= {("error", "device"), ("passed", None)}
    assert of(report, check).message.startswith(text)
    assert of(report, check).findings
    assert (report.verdict, report.exit_code) == ("incomplete", 4)


def test_a_wrong_index_is_reported_by_the_places_of_its_tensors() -> None:
    with simx.inject(one_index="1"):
        report = run(device="simx:1")
    assert statuses(report) == {("error", "device")}
    assert "sits on simx:0 although the whole stage was put on simx:1" in of(report, CHECKS[0]).message


def test_one_fault_of_the_device_is_reported_once_in_its_section() -> None:
    with simx.inject(wrong="aten::mm:transpose"):
        report = run()
    lines = [line.text for line in closing(report, 100)]
    (number,) = [line for line in lines if line.startswith("[")]
    assert number == f"[1] {report.summary['error']} checks: aten::mm is wrong on simx:0 in float32"
    assert any("device faults: " in line for line in lines)
    assert "They say nothing about reference-split." in lines
    assert not any("could not be judged: " in line for line in lines)
    assert any("likely cause: aten::mm of float32" in " ".join(lines[i : i + 3]) for i in range(len(lines)))


def test_a_varying_summation_order_is_reported_but_not_wrong() -> None:
    with simx.inject(nondeterministic="1"):
        report = run()
    assert statuses(report) <= {("passed", None), ("unsupported", None)}
    apart = [result for result in report.results if result.oracle_spread]
    assert apart
    assert all(result.bit_equal is None and 0.0 < (result.oracle_spread or 0.0) < 1e-4 for result in apart)
    assert "plain autograd does not repeat itself bit by bit" in "\n".join(line.text for line in closing(report, 999))


def test_a_lost_device_is_an_environment_error_in_every_check() -> None:
    with simx.inject(lost_at="60"):
        report = run()
    assert ("error", "environment") in statuses(report)
    assert statuses(report) <= {("error", "environment"), ("passed", None)}
    assert all(result.message.startswith("simx:0 failed: ") for result in report.results if result.status == "error")
    assert report.exit_code == 4


def test_an_operation_that_the_device_lacks_is_unsupported_and_quoted() -> None:
    with simx.inject(no_ops="aten::convolution"):
        report = run()
    result = of(report, "full.gradients.conv2d")
    assert (result.status, result.kind) == ("unsupported", "environment")
    assert "aten::convolution" in result.message
    assert of(report, "full.gradients.mlp").status == "passed"


def test_too_many_unsupported_checks_make_the_run_incomplete() -> None:
    with simx.inject(no_ops="aten::mm"):
        report = run(checks=None, profile="quick")  # contract 1.3 has actions that may raise
    assert not {"failed", "error"} & {status for status, _ in statuses(report)}
    assert report.summary["passed"] > 0
    assert (report.verdict, report.exit_code) == ("incomplete", 5)
    assert str(report.lacks[0]) in "\n".join(line.text for line in closing(report, 9999))


# --- where operations run


def test_a_cpu_fallback_is_found_even_if_every_tensor_is_on_the_device() -> None:
    with simx.inject(cpu_fallback="aten::mm"):
        seen = run(checks="split.gradients.mlp")
        required = run(checks="split.gradients.mlp", require_device_execution=100)
    (result,) = seen.results
    assert result.status == "passed"
    assert 0.0 < (result.off_device_share or 0.0) < 1.0
    (result,) = required.results
    assert (result.status, result.kind) == ("error", "device")
    assert "expected at least 100 % of operations on the device" in result.message
    assert "aten::mm" in result.message


def on_the_cpu(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a stage backward that computes its input gradients twice, the second time on the CPU."""

    def stage_backward(outputs: Any, grads: Any, inputs: Any, indices: Any = None) -> Any:
        found = backward(outputs, grads, inputs, indices)
        return tuple(None if grad is None else (grad.cpu() * 1.0).to(grad.device) for grad in found)

    return stage_backward


class HandsBackFromTheCpu:
    """An implementation whose input gradients were computed on the CPU, and right."""

    stage_backward = staticmethod(on_the_cpu(split.stage_backward))


class LeavesOnTheCpu:
    """An implementation whose input gradients stay on the CPU."""

    @staticmethod
    def stage_backward(outputs: Any, grads: Any, inputs: Any, indices: Any = None) -> Any:
        """Run the backward and copy what it returns."""
        return map_leaves(
            lambda grad: grad.cpu() if isinstance(grad, Tensor) else grad,
            split.stage_backward(outputs, grads, inputs, indices),
        )


def test_an_implementation_that_computes_on_the_cpu_fails_if_the_device_is_required() -> None:
    (result,) = run(HandsBackFromTheCpu, checks="full.gradients.mlp").results
    assert result.status == "passed"
    assert (result.off_device_share or 0.0) > 0.0
    report = run(HandsBackFromTheCpu, checks="full.gradients.mlp", require_device_execution=100)
    assert statuses(report) == {("failed", "device")}
    assert "(plain autograd: 100 %); off the device: aten::mul 2 times" in report.results[0].message
    (result,) = run(HandsBackFromTheCpu, checks="full.gradients.mlp", require_device_execution=50).results
    assert result.status == "passed"


def test_a_gradient_left_on_the_cpu_fails() -> None:
    report = run(LeavesOnTheCpu, checks="full.gradients.mlp")
    assert statuses(report) == {("failed", "device")}
    assert "input 0, after B0: is on cpu" in report.results[0].message


# --- wrong implementations on a healthy device


class Doubles:
    """A stage backward that returns twice the input gradients."""

    @staticmethod
    def stage_backward(outputs: Any, grads: Any, inputs: Any, indices: Any = None) -> Any:
        """Return twice what is right."""
        found = split.stage_backward(outputs, grads, inputs, indices)
        return tuple(None if grad is None else 2 * grad for grad in found)


class Raises:
    """A stage backward that raises."""

    @staticmethod
    def stage_backward(*_: Any) -> Any:
        """Raise."""
        msg = "not on this device"
        raise RuntimeError(msg)


def test_a_wrong_implementation_fails_with_the_same_cause_as_on_the_cpu() -> None:
    on_device, on_cpu = (run(Doubles, checks="full.gradients.mlp", device=place) for place in ("simx:0", "cpu"))
    assert statuses(on_device) == {("failed", "mismatch")}
    assert on_device.results[0].message == on_cpu.results[0].message


def test_an_implementation_that_raises_where_plain_autograd_runs_fails() -> None:
    report = run(Raises, checks="full.gradients.mlp")
    assert statuses(report) == {("failed", "error")}
    assert "raised RuntimeError: not on this device; plain autograd does not" in report.results[0].message


def test_a_wrong_implementation_fails_on_a_nondeterministic_device() -> None:
    with simx.inject(nondeterministic="1"):
        report = run(Doubles, checks="full.gradients.mlp")
    assert statuses(report) == {("failed", "mismatch")}


# --- memory


class Hoards:
    """A stage backward that allocates a MiB on the device at each call, and lets go of it."""

    @staticmethod
    def stage_backward(outputs: Any, grads: Any, inputs: Any, indices: Any = None) -> Any:
        """Take memory, then run the backward."""
        taken = torch.empty(1 << 20, dtype=torch.uint8).to(inputs[0].device)
        del taken
        return split.stage_backward(outputs, grads, inputs, indices)


@pytest.mark.parametrize("counted", [True, False], ids=["by the device's counter", "by live tensors"])
def test_the_peak_of_memory_is_shown_with_plain_autograds(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 (a parameter)
    from gradconform.devices.device import device_of  # noqa: PLC0415 (as the next line)

    monkeypatch.setattr(type(device_of("simx:0")), "counts_memory", counted)
    (result,) = run(Hoards, checks="full.gradients.mlp").results
    assert result.memory is not None
    assert result.memory["peak"] >= 1 << 20
    assert 0 < result.memory["plain_autograd"] == result.memory["undeferred"] < 1 << 17


def test_the_memory_of_deferred_weights_is_reported() -> None:
    report = run(checks="split.gradients.mlp")
    memory = report.results[0].memory
    assert memory is not None
    assert memory["undeferred"] < memory["peak"]
    text = "\n".join(line.text for line in closing(report, 999))
    assert "times plain autograd without deferred weight gradients (split.gradients.mlp)" in text


def on_device() -> int:
    gc.collect()
    found = [item for item in gc.get_objects() if issubclass(type(item), Tensor)]  # isinstance would ask the object
    return sum(tensor.device.type == "simx" for tensor in found)


@pytest.mark.parametrize("target", ["reference-split", Doubles])
def test_a_check_leaves_no_tensor_on_the_device(target: object) -> None:
    def held() -> tuple[int, int]:
        return on_device(), torch.accelerator.memory_allocated("simx:0")

    before = held()
    judged = Run(RunOptions.of(target, device="simx:0", profile="standard", checks=CHECKS))
    seen: list[tuple[str, tuple[int, int]]] = []
    report = judged.run(lambda result: seen.append((result.check, held())))
    assert seen == [(result.check, before) for result in report.results]  # the run keeps its evidence
    assert len(seen) == len(CHECKS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_device_gets_the_values_of_the_cpu_bit_for_bit(dtype: torch.dtype) -> None:
    trial = Trial(stages=(ZOO["mlp"],), program="F0 B0", prior_grads=True)
    here, there = (Materials(trial, dtype=dtype, device=torch.device(place), seed=20) for place in ("cpu", "simx:1"))
    for on_cpu, on_simx in zip(_all_values(here), _all_values(there), strict=True):
        assert (on_cpu.device.type, str(on_simx.device)) == ("cpu", "simx:1")
        assert on_simx.dtype == on_cpu.dtype == dtype
        assert torch.equal(on_simx.cpu(), on_cpu)


def _all_values(materials: Materials) -> list[Tensor]:
    stage = materials.stage(0)
    params = list(stage.parameters())
    grads = [parameter.grad for parameter in params if parameter.grad is not None]
    assert len(grads) == len(params)
    drawn = (*materials.args(0, 0, stage), *materials.output_grads(0, 0), *materials.target(0, 0))
    return [*params, *grads, *drawn]


def test_a_cpu_fallback_with_a_number_among_its_arguments_is_judged() -> None:
    with simx.inject(cpu_fallback="aten::copysign"):
        report = check_stage_backward("reference-split", device="simx:0", operation=["copysign"])
    assert {result.status for result in report} == {"passed"}


@pytest.mark.parametrize(
    ("beside", "number", "dtype"),
    [
        (torch.ones(3), 0.1, torch.float64),
        (torch.tensor(1.0), 0.1, torch.float32),
        (torch.ones(3, dtype=torch.int32), 0.1, torch.float32),
        (torch.ones(3), 2, torch.int64),
    ],
)
def test_a_number_in_a_cpu_fallback_does_not_change_the_dtype(
    beside: torch.Tensor, number: float, dtype: torch.dtype
) -> None:
    made = number_tensor([beside, number], number)
    assert made.dtype is dtype
    assert (beside + made).dtype is (beside + number).dtype
