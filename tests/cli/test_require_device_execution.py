"""``gradconform run --require-device-execution``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradconform.cli import main


def test_an_invalid_percentage_is_refused_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "reference-split", "--require-device-execution", "101"]) == 2
    assert "require_device_execution: expected a number from 0 to 100, such as 95; got '101'" in capsys.readouterr().err


def test_on_the_cpu_no_device_share_and_no_memory_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    arguments = ["--checks", "full.gradients.mlp", "--no-isolation", "--json", str(path)]
    assert main(["run", "reference-split", "--require-device-execution", "100", *arguments]) == 5
    (result,) = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert (result["status"], result["off_device_share"], result["memory"]) == ("passed", None, None)
