"""One check of a sharded stage again, and as a script for torchrun that needs torch and the user's code alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gradconform
from gradconform.cli import main
from gradconform.reference.sharded.faults import FAULTS

MINE = "from gradconform.reference.sharded.{module} import {name}\n\n\nclass Mine({name}):\n    pass\n"


def written(folder: Path, module: str, name: str, check: str) -> subprocess.CompletedProcess[str]:
    """Write the script of a check, and run it as it says."""
    (folder / "mine.py").write_text(MINE.format(module=module, name=name))
    assert main(["replay", check, "mine.py:Mine", "--script", "defect.py"]) == 0
    text = (folder / "defect.py").read_text()
    assert "import gradconform" not in text
    (ranks,) = re.findall(r"torchrun --nproc-per-node (\d+) defect\.py", text)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "defect.py"]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_the_script_of_a_fault_shows_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind, _ = FAULTS[name]
    report = gradconform.check_sharded_stage(f"gradconform.reference.sharded.faults:{name}")
    check = next(one.check for one in report if one.status == "failed" and one.check.split(".")[1] == kind)
    done = written(tmp_path, "faults", name, check)
    assert done.returncode == 1, done.stdout + done.stderr[-2000:]
    assert "expected " in done.stdout or "differ" in done.stdout, done.stdout


@pytest.mark.slow
def test_a_script_shows_a_wrong_norm_without_the_kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = written(tmp_path, "faults", "NormCountsCopies", "sharded.norm.plain")
    assert done.returncode == 1
    assert "rank 0: norm: expected " in done.stdout


@pytest.mark.parametrize("row", ["plain", "mixed-1", "mixed-2", "mixed-3"])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        pytest.param("column_row", "ColumnRowMLP", marks=pytest.mark.slow),
        pytest.param("torch_styles", "TorchStyles", marks=pytest.mark.slow),
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


@pytest.mark.parametrize(("check", "most"), [("outputs", 191), ("gradients", 192), ("norm", 205), ("copies", 206)])
def test_a_script_has_only_what_its_check_compares(
    check: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MINE.format(module="column_row", name="ColumnRowMLP"))
    assert main(["replay", f"sharded.{check}.plain", "mine.py:Mine", "--script", "defect.py"]) == 0
    text = (tmp_path / "defect.py").read_text()
    assert len(text.splitlines()) <= most
    assert ("DTensor" in text, "def compare_norm" in text, "def compare_copies" in text) == (
        False, check == "norm", check == "copies",
    )  # fmt: skip
