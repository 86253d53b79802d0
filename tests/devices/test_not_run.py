"""The modules of devices that nobody has run: they can be imported, and say what they are without the device."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

Process = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.parametrize("name", ["mps", "xpu"])
def test_a_missing_device_is_refused_in_one_sentence(name: str, process: Process) -> None:
    plugin = f"gradconform.plugins.devices.{name}"
    done = process("gradconform", "run", "reference-split", "--device", name, "--device-plugin", plugin)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith(f"gradconform: device {name!r} cannot be used: ")
    assert "; usable here: cpu" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_plugin_without_its_package_names_the_package_to_install(process: Process) -> None:
    plugin = "gradconform.plugins.devices.npu"
    done = process("gradconform", "run", "reference-split", "--device", "npu", "--device-plugin", plugin)
    assert (done.returncode, done.stdout) == (4, "")
    assert "NpuUnavailableError: torch_npu is not installed; install the release that belongs to your" in done.stderr
