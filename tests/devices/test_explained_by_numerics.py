"""What the numeric profile of a device explains is no device fault; a wrong operation still is one."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from gradconform.devices.device import device_of
from gradconform.devices.numeric_profile import NumericProfile
from gradconform.devices.numerics import measure_numerics
from gradconform.drive.observation import Executed, Observation
from gradconform.drive.oracle import Oracle
from gradconform.drive.reference64 import References
from gradconform.fixtures.stages import ZOO
from gradconform.judge.accumulated_rounding import relative_errors, with_errors
from gradconform.judge.device_precision import judged_with
from gradconform.judge.device_trust import DeviceFaultError, DeviceTrust, spread_of
from gradconform.judge.wrong_operation import Compared, operations_of
from gradconform.sources.operations.selected import select_checks
from gradconform.tolerance import FAR, Partials, Room, floor_factor, judge
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

from .rounded import Tf32

CPU = torch.device("cpu")

#: Stages whose operations :class:`Tf32` rounds.
STAGES = ["conv2d", "conv2d-channels-last", "lstm"]


class Rounded(Oracle):
    """Plain autograd on a device that rounds as TF32 does, or multiplies by ``1 + planted``."""

    def __init__(self, mode: TorchDispatchMode) -> None:
        super().__init__(CPU)
        self.trusted, self.mode = False, mode

    def _drive(self, references: References, materials: Materials | None = None, *, logged: bool = True) -> Observation:
        with self.mode if materials is None else nullcontext():
            return super()._drive(references, materials, logged=logged)


def _trust(monkeypatch: pytest.MonkeyPatch, stage: str, mode: Tf32, profile: NumericProfile | None) -> Observation:
    """Return what plain autograd shows in ``mode``; raise ``DeviceFaultError`` if that is not trusted."""
    monkeypatch.setattr(device_of(CPU), "numerics", profile)
    oracle = Rounded(mode)
    observation, _ = DeviceTrust(oracle).observe(_references(stage, oracle))
    return observation


def _references(stage: str, oracle: Oracle | None = None) -> References:
    materials = Materials(Trial(stages=(ZOO[stage],), program="F0 B0 F1 B1"), dtype=torch.float32, device=CPU, seed=20)
    return (oracle or Oracle(CPU)).references(materials, 1.0)


def _tf32() -> NumericProfile:
    with Tf32():
        return measure_numerics(device_of(CPU))


@pytest.mark.parametrize("stage", STAGES)
def test_tf32_without_a_profile_is_a_device_fault(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    with pytest.raises(DeviceFaultError, match="is wrong"):
        _trust(monkeypatch, stage, Tf32(), None)


@pytest.mark.parametrize("stage", STAGES)
def test_tf32_within_the_measured_profile_passes(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    observation = _trust(monkeypatch, stage, Tf32(), _tf32())
    assert observation.raised is None
    assert [str(step.action) for step in observation.steps][:4] == ["F0", "B0", "F1", "B1"]


def test_an_error_of_a_64th_in_a_tf32_convolution_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceFaultError, match="is wrong"):
        _trust(monkeypatch, "conv2d", Tf32(planted=2.0**-6), _tf32())


def test_other_operations_get_no_larger_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceFaultError, match="is wrong"):
        _trust(monkeypatch, "mlp", Tf32(("addmm",)), _tf32())


class EverySecond(TorchDispatchMode):
    """Makes ``tanh_backward`` wrong on the device, which is asked first, and not on the CPU, asked second."""

    calls = 0

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        if "tanh_backward" in func.name() and found.dtype == torch.float32:
            self.calls += 1
            return found * (1 + self.error) if self.calls % 2 else found
        return found


@pytest.mark.parametrize(("family", "named"), [("convolution", True), ("", False)])
def test_a_wrong_operation_is_named_next_to_an_imprecise_one(
    monkeypatch: pytest.MonkeyPatch, *, family: str, named: bool
) -> None:
    imprecise = {"float32_bits": {family: 10}} if family else {"functions": {"tanh": 4096.0}}
    monkeypatch.setattr(device_of(CPU), "numerics", replace(NumericProfile(), **imprecise))
    with EverySecond(2.0**-7 if family else 2.0**-9):
        found = operations_of(_references("conv2d")).wrong
    assert (found is not None) == named
    if found is not None:
        assert found.names[0] == "aten::tanh_backward"


@pytest.mark.parametrize(("eps", "wrong"), [(64, False), (4096, True)])
def test_an_error_of_some_eps_that_float64_lacks_is_imprecise(
    monkeypatch: pytest.MonkeyPatch, eps: int, *, wrong: bool
) -> None:
    monkeypatch.setattr(device_of(CPU), "numerics", None)
    with EverySecond(eps * 2.0**-23):
        found = operations_of(_references("conv2d"))
    assert (found.wrong is not None, bool(found.imprecise)) == (wrong, not wrong)
    for one in found.imprecise:
        assert (one.operation, one.dtype) == ("aten::tanh_backward", "float32")
        assert eps / 4 < one.eps <= 1.01 * eps


class Float32Scalars(TorchDispatchMode):
    """Rounds the slope of ``leaky_relu`` to float32 on the device, which is asked first, and not on the CPU.

    ``planted`` is a relative error beside that.
    """

    calls = 0

    def __init__(self, planted: float) -> None:
        super().__init__()
        self.planted = planted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.calls += "leaky_relu" in func.name()
        if "leaky_relu" not in func.name() or self.calls > 1:
            return func(*args, **(kwargs or {}))
        values, slope = args
        return func(values, torch.tensor(slope, dtype=torch.float32).item()) * (1 + self.planted)


@pytest.mark.parametrize(("planted", "wrong"), [(0.0, False), (1e-9, True)])
def test_scalars_that_are_rounded_to_float32_are_imprecise_in_float64(
    monkeypatch: pytest.MonkeyPatch, planted: float, *, wrong: bool
) -> None:
    monkeypatch.setattr(device_of(CPU), "numerics", None)
    values = torch.linspace(-2, 1, 12, dtype=torch.float64)
    with Float32Scalars(planted), Compared(device_of(CPU), twice=False) as compared:
        functional.leaky_relu(values, 0.1)
    assert (compared.found is not None, bool(compared.imprecise)) == (wrong, not wrong)
    assert set(compared.imprecise) <= {("aten::leaky_relu", "float64")}


class Ulps(TorchDispatchMode):
    """A device that fuses operations: products in float16 are off by some last bits, as if not rounded in between."""

    def __init__(self, ulps: int) -> None:
        super().__init__()
        self.ulps = ulps

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        found = func(*args, **(kwargs or {}))
        exact = "mul" not in func.name() or found.dtype is not torch.float16
        return found if exact else found * (1 + self.ulps * 2.0**-10)


@pytest.mark.parametrize(("ulps", "wrong"), [(1, False), (100, True)])
def test_a_device_that_fuses_operations_differs_in_their_last_bits(
    monkeypatch: pytest.MonkeyPatch, ulps: int, *, wrong: bool
) -> None:
    monkeypatch.setattr(device_of(CPU), "numerics", None)
    (check, *_), oracle = select_checks(["half"], "quick").checks, Rounded(Ulps(ulps))
    for trial in check.trials:
        references = oracle.references(Materials(trial, dtype=torch.float32, device=CPU, seed=20), 1.0)
        with pytest.raises(DeviceFaultError, match="no single operation") if wrong else nullcontext():
            DeviceTrust(oracle).observe(references)


@pytest.mark.parametrize(("roughest", "off"), [({}, 0.0), ({torch.float32: 1e-3}, 1e-4)])
def test_differences_in_composed_operations_follow_the_roughest_operation(
    roughest: dict[torch.dtype, float], off: float
) -> None:
    references = _references("mlp")
    exact = Oracle(CPU).observe(references)
    apart = spread_of(exact, with_errors(references.materials, 1.0, {}, roughest, 0))
    assert off < max(apart.values()) < 1e-5 + 1000 * off


def test_the_remainder_of_cancelling_terms_is_bounded_by_rounding() -> None:
    (cancelled,), (kept,) = (list(relative_errors((1e-6,), [torch.tensor([one, 0.0])])) for one in (1e-6, 1.0))
    assert cancelled[1] == pytest.approx(FAR * floor_factor(torch.float32) * 2.0**-23)
    assert kept[1] == pytest.approx(1e-6)
    assert list(relative_errors((0.0,), [torch.ones(2)])) == []


class Disturbed(Rounded):
    """A device on which a log of operations changes what is computed."""

    def _drive(self, references: References, materials: Materials | None = None, *, logged: bool = True) -> Observation:
        on_the_cpu = materials is not None
        with self.mode if logged and not on_the_cpu else nullcontext():
            found = Oracle._drive(self, references, materials, logged=logged)
        executed = Executed() if logged else None
        return found if on_the_cpu else replace(found, executed=executed)


def test_if_only_the_operation_log_changes_a_result_it_is_judged_without_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_of(CPU), "numerics", None)
    oracle = Disturbed(Tf32(planted=2.0**-6))
    references = _references("conv2d", oracle)
    assert oracle.observe(references).executed is not None
    found, _ = DeviceTrust(oracle).observe(references)
    assert found.executed is None
    again, _ = DeviceTrust(oracle).observe_again(references, found)
    assert again.executed is None


def _fast() -> Tf32:
    """Return functions and fused networks with an error of 64 eps, as cuDNN's fast tanh and sigmoid have."""
    return Tf32(("tanh", "sigmoid", "mkldnn_rnn"), 64 * 2.0**-23, rounds=False)


@pytest.mark.parametrize("stage", ["rnn", "gru", "lstm"])
def test_fast_tanh_and_sigmoid_explain_an_rnn(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    with _fast():
        profile = measure_numerics(device_of(CPU))
    assert 60 < (profile.functions["tanh"] or 0) < 70
    with pytest.raises(DeviceFaultError, match="is wrong"):
        _trust(monkeypatch, stage, _fast(), None)
    _trust(monkeypatch, stage, _fast(), profile)


def test_flushed_denormals_explain_only_tiny_gradients() -> None:
    tiny, right = torch.zeros(2), torch.tensor([5e-36, 0.0])
    room = Room(absolute=NumericProfile(denormals_kept=False).smallest_error)
    assert not judge(tiny, right, right.double(), Partials()).passed
    with judged_with(room):
        assert judge(tiny, right, right.double(), Partials()).passed
        assert not judge(tiny, right * 100, right.double() * 100, Partials()).passed
