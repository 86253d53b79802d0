"""One check of a sharded stage again, and as a script for torchrun that needs torch and the user's code alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradconform.cli import main

MINE = "from gradconform.reference.sharded.{module} import {name}\n\n\nclass Mine({name}):\n    pass\n"


def written(folder: Path, module: str, name: str, check: str) -> subprocess.CompletedProcess[str]:
    """Write the script of a check, and run it on two ranks."""
    (folder / "mine.py").write_text(MINE.format(module=module, name=name))
    assert main(["replay", check, "mine.py:Mine", "--script", "defect.py"]) == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "defect.py"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.slow
def test_a_script_shows_a_wrong_norm_without_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = written(tmp_path, "faults", "NormCountsCopies", "sharded.norm.plain")
    assert done.returncode == 1
    assert "rank 0: norm: expected " in done.stdout
    assert "import gradconform" not in (tmp_path / "defect.py").read_text()


@pytest.mark.parametrize("row", ["plain", "mixed-1", "mixed-2", "mixed-3"])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param("column_row", "ColumnRowMLP", marks=pytest.mark.slow),
        pytest.param("torch_styles", "TorchStyles", marks=pytest.mark.nightly),
        pytest.param("experts", "RoutedExperts", marks=pytest.mark.nightly),
        pytest.param("fused", "FusedHeads", marks=pytest.mark.nightly),
    ],
)
def test_a_script_of_a_right_stage_finds_nothing(
    module: str, name: str, row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = written(tmp_path, module, name, f"sharded.gradients.{row}")
    assert (done.returncode, "equal to the whole stage" in done.stdout) == (0, True), done.stdout + done.stderr[-2000:]


@pytest.mark.slow
def test_a_failed_check_runs_again_from_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stage = "gradconform.reference.sharded.faults:NormCountsCopies"
    assert main(["sharded", stage, "--checks", "sharded.norm.plain", "--json", "report.json"]) == 1
    capsys.readouterr()
    assert main(["replay", "report.json#1"]) == 1
    assert "same result as in the report, to the last digit" in capsys.readouterr().out


def test_an_option_of_another_kind_of_check_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "sharded.norm.plain", "gradconform.reference.sharded.fused:FusedHeads", "--probe"]) == 2
    assert "a check of a sharded stage takes only" in capsys.readouterr().err
