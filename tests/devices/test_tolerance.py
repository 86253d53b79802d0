"""The tolerance that a device's object has: what runs there is judged by it, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gradconform import tolerance
from gradconform.devices.device import Device
from gradconform.tolerance import floor_factor, override, tolerances_of

Process = Callable[..., Any]

#: A stage backward whose input gradients are wrong by 30 times the smallest step of float32.
SLIGHTLY_OFF = """
import torch

def stage_backward(stage_output, output_grads, input_values):
    torch.autograd.backward(stage_output, output_grads)
    return tuple(value.grad * (1 + 30 * 2**-23) for value in input_values)
"""


@pytest.mark.parametrize(
    "given", [{"float32": 9.0}, lambda name: 9.0 if name == "float32" else None], ids=["mapping", "function"]
)
def test_a_device_object_sets_tolerances_by_a_mapping_or_a_function(given: Any) -> None:
    assert Device("cpu", SimpleNamespace(tolerance=given)).tolerances == {"float32": 9.0}
    assert Device("cpu", SimpleNamespace()).tolerances == {}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"float32": -1.0}, "tolerance 'float32' = -1.0; expected a positive number"),
        ({"float23": 1.0}, "unsupported dtype 'float23'"),
        (lambda _: "wide", "tolerance 'float64' = 'wide'; expected a positive number"),
    ],
)
def test_an_invalid_tolerance_is_refused(given: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        _ = Device("cpu", SimpleNamespace(tolerance=given)).tolerances


def test_a_device_tolerance_applies_during_its_run_and_a_hook_overrides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerance, "_OVERRIDES", {})
    own = floor_factor(torch.float32), floor_factor(torch.bfloat16)
    override({"bfloat16": 5.0})
    with tolerances_of({"float32": 9.0, "bfloat16": 9.0}):
        assert (floor_factor(torch.float32), floor_factor(torch.bfloat16)) == (9.0, 5.0)
    monkeypatch.setattr(tolerance, "_OVERRIDES", {})
    assert (floor_factor(torch.float32), floor_factor(torch.bfloat16)) == own


@pytest.mark.slow
def test_the_command_uses_and_reports_the_device_tolerance(abacus: Path, process: Process) -> None:
    (abacus / "off.py").write_text(SLIGHTLY_OFF, encoding="utf-8")
    (abacus / "lenient.py").write_text(
        "import abacus\nfrom gradconform.devices import register_device\n"
        "class Lenient:\n    tolerance = {'float32': 1000.0}\nregister_device('abacus', Lenient())\n",
        encoding="utf-8",
    )
    words = ("gradconform", "run", "off.py", "--device", "cpu,abacus", "--checks", "full.gradients.mlp")
    strict = process(*words, "--device-plugin", "abacus", "--json", "strict.json")
    lenient = process(*words, "--device-plugin", "lenient", "--json", "lenient.json")
    told = "abacus:0 is judged by the tolerance of its device object: c = 1000 in float32"
    assert (told in strict.stdout, told in lenient.stdout) == (False, True)
    seen = []
    for name in ("strict", "lenient"):
        report = json.loads((abacus / f"{name}.json").read_text(encoding="utf-8"))
        seen.append({result["device"]: result["status"] for result in report["results"]})
        (probe,) = report["devices"]["probes"]
        assert probe["facts"]["tolerance"] == ({"float32": 1000.0} if name == "lenient" else {})
    assert seen == [{"cpu": "failed", "abacus": "failed"}, {"cpu": "failed", "abacus": "passed"}]


def test_an_invalid_device_tolerance_stops_the_run_before_it_starts(abacus: Path, process: Process) -> None:
    (abacus / "wrong.py").write_text(
        "import abacus\nfrom gradconform.devices import register_device\n"
        "class Wrong:\n    tolerance = {'float32': 0}\nregister_device('abacus', Wrong())\n",
        encoding="utf-8",
    )
    done = process("gradconform", "run", "autograd", "--device", "abacus", "--device-plugin", "wrong")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the device object of 'abacus' cannot be used: tolerance 'float32' = 0; expected a positive" in done.stderr
