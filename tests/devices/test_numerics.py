"""The numeric profile: measured from values, stored as JSON, and reported only where it differs from IEEE float32."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

from gradconform.devices.device import Device
from gradconform.devices.numeric_profile import NumericProfile
from gradconform.devices.numerics import _rnn, measure_numerics
from gradconform.devices.probe import Probe
from gradconform.report.health import Health, health_lines
from gradconform.report.terminal import opening
from gradconform.results import Report

from .rounded import Tf32

CPU = Device("cpu")

#: What the H100 measured, where it differs from the CPU.
H100 = NumericProfile(
    float32_bits={"matmul": 23, "convolution": 10, "rnn": 10},
    without_tf32={"convolution": 23, "rnn": 16},
    functions={"tanh": 1.0, "sigmoid": 1.0, "exp": 1.0, "erf": 1.0, "rsqrt": 1.0},
    denormals_kept=True,
    atomics_spread=1.2e-7,
)


def test_the_cpu_profile_matches_ieee_arithmetic() -> None:
    profile = measure_numerics(CPU)
    assert profile.float32_bits["matmul"] == profile.float32_bits["convolution"] == 23
    assert (profile.float64_bits, profile.denormals_kept, profile.nan_kept) == (52, True, True)
    assert profile.integers == ("int8", "uint8", "int16", "int32", "int64")
    assert profile.sentences == ()
    assert profile.precision(["aten::convolution", "aten::mm", "aten::tanh"]) == 0.0


def test_tf32_is_detected_from_values_and_its_switch_is_named() -> None:
    with Tf32():
        profile = measure_numerics(CPU)
    assert (profile.float32_bits["convolution"], profile.without_tf32["convolution"]) == (10, 23)
    assert profile.float32_bits["matmul"] == 23
    assert "convolutions have 10 bits here: TF32, torch's setting; use --flag tf32=off for 23" in profile.sentences[0]


def test_reduced_precision_without_a_switch_is_reported_without_one() -> None:
    with Tf32(("mm",)), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gradconform.devices.numerics.flags_set", lambda *_: torch.no_grad())
        patch.setattr("gradconform.devices.numerics._without_tf32", lambda *_: 10)
        profile = measure_numerics(CPU)
    assert profile.float32_bits["matmul"] == 10
    assert "float32 matrix products have 10 bits here" in profile.sentences


@pytest.mark.filterwarnings("ignore:TF32 acceleration")  # torch sets oneDNN's other switches, too
def test_a_composed_rnn_has_the_precision_of_its_operations() -> None:
    copied: list[int] = []
    device = Device("cpu", registered=SimpleNamespace(to_cpu=lambda tensor: copied.append(tensor.numel()) or tensor))
    with torch.backends.mkldnn.flags(enabled=False):
        assert _rnn(device) is None
    assert not copied  # a lazy device compiles nothing
    assert _rnn(device) == measure_numerics(CPU).float32_bits["rnn"] is not None


def test_a_probe_that_fails_leaves_its_field_unknown() -> None:
    def fail(*_: object) -> None:
        return None

    profile = measure_numerics(CPU, ask=fail)
    assert profile.float32_bits == {"matmul": None, "convolution": None, "rnn": None}
    assert (profile.denormals_kept, profile.integers, profile.sentences) == (None, None, ())


def test_a_numeric_profile_survives_json() -> None:
    assert NumericProfile.from_dict(json.loads(json.dumps(H100.to_dict()))) == H100


def test_an_h100_is_described_in_two_sentences() -> None:
    assert H100.sentences == (
        "float32 convolutions have 10 bits here: TF32, torch's setting; use --flag tf32=off for 23",
        "float32 RNNs have 10 bits here: TF32, torch's setting; use --flag tf32=off for 16",
        "two equal runs of scatter or index_add differ by 1.2e-07",
    )


def test_each_other_difference_has_one_sentence() -> None:
    profile = NumericProfile(
        functions={"tanh": 64.0, "exp": 1.0},
        denormals_kept=False,
        accumulation={"bfloat16 sum": "bfloat16", "float16 sum": "float32"},
        nan_kept=False,
        signed_zero_kept=False,
        float64_bits=23,
        integers=("int8", "uint8", "int16", "int32"),
    )
    assert profile.sentences == (
        "float32 errors: tanh 64 eps",
        "denormals are flushed to 0",
        "accumulated in 16 bits: bfloat16 sum",
        "min, max or a comparison loses NaN",
        "min or max loses the sign of 0",
        "float64 has 23 bits here",
        "integers change in a round trip: int64",
    )


def test_errors_too_large_for_rounding_are_reported_and_not_tolerated() -> None:
    profile = NumericProfile(
        float32_bits={"matmul": 10, "rnn": 0}, functions={"tanh": 8.8e10, "erf": math.nan, "exp": 4096.0}
    )
    assert profile.sentences == (
        "float32 errors too large for rounding, not tolerated: RNNs",
        "float32 errors above 4,096 eps of a single value: tanh, erf; checks compare with a tensor's largest value",
        "float32 matrix products have 10 bits here",
        "float32 errors: exp 4096 eps",
    )
    assert profile.precision(["aten::tanh", "aten::lstm", "aten::erf"]) == 0.0
    assert profile.precision(["aten::exp"]) > 0.0


def _header(device: str, profile: NumericProfile, indices: int = 1) -> list[str]:
    facts = {"numerics": profile.to_dict()}
    probe = {"reason": None, "unknown": False, "dtypes": {}, "preflight": [], "facts": facts}
    probes = [{"device": device.replace("0", str(index)), **probe} for index in range(indices)]
    told = {"probes": probes, "skipped": [], "indices": {}}
    target = {"text": "engine", "name": "engine", "version": None, "file": None}
    report = Report(
        profile="standard", target=target, environment={}, seed=20, manifest=1, planned=1, contract="1.0", devices=told
    )
    return [line.text for line in opening(report, [(device, "float32")], 120) if "numerics" in line.text]


def test_the_run_header_lists_numeric_differences() -> None:
    flushing = NumericProfile(denormals_kept=False, functions={"tanh": 64.0})
    assert _header("xla:0", flushing) == [
        "numerics  xla:0: float32 errors: tanh 64 eps; denormals are flushed to 0",
    ]


def test_equal_devices_share_a_line() -> None:
    flushing = NumericProfile(denormals_kept=False)
    assert _header("xla:0", flushing, 2) == ["numerics  xla:0, xla:1: denormals are flushed to 0"]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_without_numeric_differences_the_header_has_no_line(device: str) -> None:
    assert _header(device, NumericProfile(denormals_kept=True)) == []


def test_doctor_lists_numeric_differences() -> None:
    flushing = NumericProfile(denormals_kept=False)
    probe = Probe(device="xla:0", facts={"counts_memory": True, "numerics": flushing.to_dict()})
    versions = dict.fromkeys(("gradconform", "contract", "torch", "python", "platform"), "1.0")
    lines = health_lines(Health(versions=versions, devices=(probe,), targets=()), 120)
    assert "    measured    memory is counted; denormals are flushed to 0" in [line.text for line in lines]


@pytest.mark.parametrize(
    ("operation", "precision"),
    [
        ("aten::cudnn_convolution", 2.0**-9),
        ("aten::_cudnn_rnn_backward", 2.0**-9),
        ("aten::_thnn_fused_lstm_cell", 2.0**-9),
        ("aten::addmm", 0.0),
        ("aten::add", 0.0),
    ],
)
def test_an_operation_has_the_precision_of_its_family(operation: str, precision: float) -> None:
    assert H100.precision([operation]) == precision
