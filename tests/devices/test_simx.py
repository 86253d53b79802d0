"""The simulated accelerator. Torch has one such device in a process, so each test has a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SIMX = "gradconform.plugins.devices.simx"
BACKWARD = f"""
import sys, torch
import {SIMX}
x = torch.ones(2, 2, device="simx", requires_grad=True)
(x @ x).sum().backward()
print(torch.accelerator.device_count(), x.grad.tolist())
sys.stdout.flush()
"""


def python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, with SIMX_ variables of this call alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SIMX_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **variables},
        capture_output=True,
        check=False,
        text=True,
    )


@pytest.mark.slow
def test_the_simx_tests_pass_in_a_process_that_has_loaded_simx() -> None:
    """`python -m pytest -p gradconform.plugins.devices.simx tests/devices/on_simx` is the way to run some of it."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", SIMX, str(HERE / "on_simx")],
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith(("SIMX_", "PYTEST_"))},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed in " in done.stdout
    assert not {"skipped", "deselected", "xfailed"} & set(done.stdout.split())


def test_a_process_exits_cleanly_after_a_backward_and_has_the_requested_indices() -> None:
    done = python(BACKWARD, SIMX_DEVICES="3")
    assert (done.returncode, done.stdout) == (0, "3 [[4.0, 4.0], [4.0, 4.0]]\n"), done.stderr


@pytest.mark.parametrize(
    ("variable", "moment", "code"),
    [
        ("SIMX_ABORT_AT", "aten::mm:2", -signal.SIGABRT),
        ("SIMX_SEGFAULT_AT", "aten::sum:1", -signal.SIGSEGV),
        ("SIMX_LOST_AT", "aten::mm:3", 1),
    ],
)
def test_a_process_can_be_ended_at_an_operation(variable: str, moment: str, code: int) -> None:
    done = python(BACKWARD, **{variable: moment})
    assert (done.returncode, done.stdout) == (code, "")
    assert ("torch.AcceleratorError: simx error: device lost" in done.stderr) == (code == 1)


def test_an_operation_can_hang_while_other_threads_run() -> None:
    # The time runs from when all is imported.
    code = BACKWARD.replace("x = ", "import faulthandler; faulthandler.dump_traceback_later(6, exit=True)\nx = ", 1)
    done = python(code, SIMX_HANG_AT="aten::mm:2")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "_engine_run_backward" in done.stderr


def test_a_process_can_abort_at_exit() -> None:
    done = python(BACKWARD, SIMX_ABORT_AT_EXIT="1")
    assert (done.returncode, done.stdout) == (-signal.SIGABRT, "2 [[4.0, 4.0], [4.0, 4.0]]\n")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"SIMX_DEVICES": "99"}, "SIMX_DEVICES='99': expected a number of devices from 1 to 16"),
        ({"SIMX_TF23": "1"}, "simx has no option SIMX_TF23; nearest: SIMX_TF32"),
        pytest.param(
            {"CXX": "no-such-compiler", "TORCH_EXTENSIONS_DIR": "{folder}"},
            "the device simx cannot be built: error: ",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["value", "name", "compiler"],
)
def test_the_reason_for_a_failed_load_is_reported(variables: dict[str, str], message: str, tmp_path: Path) -> None:
    done = python(f"import {SIMX}", **{name: value.format(folder=tmp_path) for name, value in variables.items()})
    assert done.returncode == 1
    assert message in done.stderr.splitlines()[-1]
    assert all(value in done.stderr.splitlines()[-1] for name, value in variables.items() if name == "CXX")


def test_loading_simx_fails_if_the_process_has_another_such_device() -> None:
    done = python(f"import torch; torch.utils.rename_privateuse1_backend('npu'); import {SIMX}")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("torch has room for one such device, and this process has 'npu'")
