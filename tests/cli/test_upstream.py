"""``gradconform upstream``: the list, what is written and what is not, and how each wrong use ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

from gradconform.bench.upstream import offers
from gradconform.cli import main
from gradconform.exits import EXIT_CONFORMS, EXIT_ENVIRONMENT, EXIT_USAGE

ONE = "torch/view-output"
OFFERS = offers()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_the_list_has_one_line_per_defect_and_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upstream"]) == EXIT_CONFORMS
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[: len(OFFERS)]] == list(OFFERS)
    assert max(map(len, lines)) <= 80
    assert lines[len(OFFERS) + 1].startswith(f"{len(OFFERS)} confirmed defects, each with a report and a test: ")
    assert files(folder) == []


def test_a_named_defect_gets_a_report_and_a_test_and_nothing_is_sent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upstream", ONE]) == EXIT_CONFORMS
    assert_expected_inline(
        capsys.readouterr().out,
        """\
wrote view_output.md
wrote test_view_output.py

run: python test_view_output.py
on torch 2.13.0 it fails; it passes once the defect is fixed
nothing was sent; you decide whether to report it
""",
    )
    assert files(folder) == ["test_view_output.py", "view_output.md"]
    report = (folder / "view_output.md").read_text(encoding="utf-8")
    assert report.startswith(f"# {OFFERS[ONE].title}\n\npytorch #142229; ")
    assert "https://github.com/pytorch/pytorch/issues/142229" in report
    assert "since 2.6 or before (tested: 2.6 to 2.15)" in report
    assert (folder / "test_view_output.py").read_text(encoding="utf-8") == OFFERS[ONE].test
    assert OFFERS[ONE].test in report


def test_a_report_that_uses_action_letters_explains_them(folder: Path) -> None:
    assert main(["upstream", "torch/activation-hook-applied-twice", ONE]) == EXIT_CONFORMS
    reports = {
        path.stem: "F, B, I and W are the actions" in path.read_text(encoding="utf-8") for path in folder.glob("*.md")
    }
    assert reports == {"activation_hook_applied_twice": True, "view_output": False}


def test_defects_of_several_projects_get_one_folder_per_project(folder: Path) -> None:
    (folder / "here").mkdir()
    assert main(["upstream", "*/surplus-output-grads", "--into", "here"]) == EXIT_CONFORMS
    homes = {path.split("/")[1] for path in files(folder)}
    assert homes == {"d9d", "torch", "torchpippy"}
    assert len(files(folder)) == 6


def test_all_writes_every_report_and_test(folder: Path) -> None:
    assert main(["upstream", "--all"]) == EXIT_CONFORMS
    assert len(files(folder)) == 2 * len(OFFERS)


def test_an_existing_file_stops_all_writing_unless_force_is_set(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "test_view_output.py").write_text("mine")
    assert main(["upstream", ONE]) == EXIT_USAGE
    assert "'test_view_output.py' already exists; add --force to overwrite" in capsys.readouterr().err
    assert files(folder) == ["test_view_output.py"]
    assert (folder / "test_view_output.py").read_text() == "mine"
    assert main(["upstream", ONE, "--force"]) == EXIT_CONFORMS
    assert (folder / "test_view_output.py").read_text(encoding="utf-8") == OFFERS[ONE].test


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["torch/view-outptu"], "'torch/view-outptu' matches no confirmed defect"),
        (["torch/view-outptu"], "nearest: torch/view-output"),
        (["tied-apart"], "nearest: torch/tied-apart-freed-graph"),
        ([ONE, "--into", "nowhere"], "--into 'nowhere': the folder does not exist; create it first"),
        ([ONE, "--all"], "--all writes every defect; omit the names"),
        (["--into", "."], "--into and --force require defects to write; name a defect, or add --all"),
        (["--force"], "--into and --force require defects to write; name a defect, or add --all"),
    ],
)
def test_wrong_usage_is_reported_and_writes_nothing(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["upstream", *words]) == EXIT_USAGE
    assert said in capsys.readouterr().err
    assert files(folder) == []


def test_a_failed_write_leaves_no_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(self: Path, target: Path) -> None:
        del self, target
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert main(["upstream", "*/surplus-output-grads"]) == EXIT_ENVIRONMENT
    assert "No space left on device" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


def test_the_command_imports_no_torch() -> None:
    code = "import sys; from gradconform.cli import main; main(['upstream', '--all']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
