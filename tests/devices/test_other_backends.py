"""Backends that others wrote, nightly where they can be imported: docs/devices-results.md says how.

``GRADCONFORM_OPENREG`` names the module of a copy of OpenReg, if it is not ``torch_openreg``. Its device has the same
name without ``torch_``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

Process = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True, slots=True)
class Backend:
    """A backend: the device's name, the module that makes it known, how to get it, and what its library reads."""

    device: str
    module: str
    needs: str
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def installed(self) -> bool:
        """Whether the module can be imported."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:  # find_spec imports the packages above it
            return False

    @property
    def parameter(self) -> Any:
        """The backend as a parameter of a test, skipped where it is absent."""
        skip = pytest.mark.skipif(not self.installed, reason=f"{self.module} cannot be imported: {self.needs}")
        return pytest.param(self, id=self.device, marks=skip)


#: OpenReg or a renamed copy of it.
OPENREG = os.environ.get("GRADCONFORM_OPENREG", "torch_openreg")

BACKENDS = (
    Backend("tiny", "extra.torch_backend.backend", "put tinygrad's source on PYTHONPATH", {"DEV": "CPU"}),
    Backend(
        OPENREG.removeprefix("torch_"),
        OPENREG,
        "build open_registration_extension of test/cpp_extensions in torch's source",
    ),
    Backend("mcpu", "torch_mcpu", "build github.com/kzwrime/torch_mcpu with TORCH_MCPU_ENABLE_CPU_FALLBACK=ON"),
)
pytestmark = pytest.mark.nightly
each = pytest.mark.parametrize("backend", [backend.parameter for backend in BACKENDS])


def judged(backend: Backend, plugin: str, folder: Path, process: Process, *arguments: str) -> dict[str, Any]:
    """Return the report of a run of the right split on the backend."""
    done = process(
        "gradconform", "run", "reference-split", "--device", backend.device, "--device-plugin", plugin,
        *arguments, "--json", "out.json", **backend.variables, PLANTED_IN=backend.module,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr
    report: dict[str, Any] = json.loads((folder / "out.json").read_text(encoding="utf-8"))
    return report


@each
def test_the_right_split_passes_the_quick_profile(backend: Backend, tmp_path: Path, process: Process) -> None:
    report = judged(backend, backend.module, tmp_path, process, "--profile", "quick")
    others = [result for result in report["results"] if result["status"] != "passed"]
    assert {result["status"] for result in others} <= {"unsupported"}
    # Each names an operation that the backend lacks; OpenReg has no convolution, LSTM cell, sparse tensor or attention.
    assert all(result["message"].startswith("plain autograd on this device raised") for result in others)
    assert len(others) <= len(report["results"]) // 10


@each
def test_a_device_run_of_some_operations_ends_with_a_verdict(
    backend: Backend, tmp_path: Path, process: Process
) -> None:
    done = process(
        "gradconform", "device", backend.device, "--device-plugin", backend.module, "--operation", "mm,tanh,abs,sum",
        "--json", "out.json", **backend.variables,
    )  # fmt: skip
    report = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert "Traceback" not in done.stdout + done.stderr
    assert not [result["message"] for result in report["results"] if result["kind"] == "kit"]
    assert re.search(rf"^time      {len(report['results'])} checks, about ", done.stdout, re.MULTILINE)
    assert done.returncode in {0, 1}


@each
def test_a_planted_bug_is_the_only_reported_failure(backend: Backend, tmp_path: Path, process: Process) -> None:
    shutil.copy(Path(__file__).with_name("wrong_gelu.py"), tmp_path)
    report = judged(backend, "wrong_gelu", tmp_path, process, "--operation", "nn.functional.gelu")
    wrong = [result for result in report["results"] if result["status"] not in {"passed", "unsupported"}]
    assert wrong
    assert {(result["status"], result["kind"]) for result in wrong} == {("error", "device")}
    assert all("aten::gelu_backward" in result["message"] for result in wrong)
