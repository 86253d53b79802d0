"""A device that is lost, aborts, hangs or has no memory: the check is named, the device accused, the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Judged = Callable[..., Any]

CHECKS = ",".join(
    f"full.gradients.{name}" for name in ("conv2d", "layer-norm", "linear-3d", "mlp", "residual", "two-outputs")
)


@pytest.fixture
def on_simx(tmp_path: Path, judged: Judged) -> Callable[..., Any]:
    """Run checks of a right implementation on a simulated device, with the faults that variables name."""
    (tmp_path / "sitecustomize.py").write_text("import gradconform.plugins.devices.simx\n", encoding="utf-8")

    def run(checks: str, **variables: str) -> Any:
        words = ("reference-split", "--device", "simx:0", "--checks", checks, "--check-timeout", "20")
        return judged(*words, PYTHONPATH=str(tmp_path), **variables)

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("SIMX_LOST_AT", "the device was lost: AcceleratorError: simx error: device lost"),
        ("SIMX_ABORT_AT", "the process was killed by SIGABRT"),
        ("SIMX_SEGFAULT_AT", "the process was killed by SIGSEGV"),
        pytest.param("SIMX_HANG_AT", "the check did not end within 20 s", marks=pytest.mark.nightly),
    ],
)
def test_a_device_error_that_does_not_repeat_is_an_environment_error(
    on_simx: Callable[..., Any], variable: str, said: str
) -> None:
    run = on_simx(CHECKS, **{variable: "400"})
    assert sorted(run.results) == CHECKS.split(",")
    assert set(run.verdicts.values()) == {("passed", None), ("error", "environment")}
    assert (run.code, run.report["summary"]["not_run"]) == (4, 0)
    struck = [result["message"] for result in run.results.values() if result["status"] == "error"]
    assert all(message.startswith(f"{said}; run again alone, the check passed") for message in struck)


@pytest.mark.slow
def test_running_out_of_device_memory_also_in_plain_autograd_is_an_environment_error(
    on_simx: Callable[..., Any],
) -> None:
    run = on_simx("full.gradients.mlp", SIMX_MEMORY_LIMIT="1500")
    ((check, result),) = run.results.items()
    assert (check, result["status"], result["kind"], run.code) == ("full.gradients.mlp", "error", "environment", 4)
    assert result["message"].startswith("memory ran out: ")
    assert "OutOfMemoryError: simx out of memory" in result["message"]
    assert result["message"].endswith("; the same happens with plain autograd")


@pytest.mark.slow
def test_an_abort_at_exit_changes_no_verdict(judged: Judged) -> None:
    words = ("reference-split", "--device", "simx:0", "--checks", "full.gradients.mlp,full.gradients.conv2d")
    run = judged(*words, SIMX_ABORT_AT_EXIT="1")
    assert set(run.verdicts.values()) == {("passed", None)}
    assert (len(run.verdicts), run.report["summary"]["not_run"], run.code) == (2, 0, 5)
