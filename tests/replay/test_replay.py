"""``gradconform replay``: one check again, with the same numbers."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gradconform.cli import main
from gradconform.report import sentences
from gradconform.run.run import check_stage_backward

CHECK = "split.gradients.linear-hook"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.json"
    path.write_text(
        check_stage_backward("torch", checks=[CHECK, "full.gradients.mlp"], dtype="float64", seed=7).to_json()
    )
    return path


def test_a_check_is_replayed_by_its_id(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["replay", CHECK, "torch"])
    told = capsys.readouterr().out
    assert code == 1
    assert f"{CHECK}: failed; the largest error/bound is" in told
    assert "first.weight, after W0: worst at" in told


def test_replay_output_fits_the_width_and_shows_the_script_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    main(["replay", "split.gradients.penalty-output", "torch"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(" ".join(lines[-2:]).replace("\\", "").split()) == (
        "write a script: gradconform replay split.gradients.penalty-output torch --script defect.py"
    )


def test_a_failure_without_a_wrong_value_has_no_largest_error(capsys: pytest.CaptureFixture[str]) -> None:
    main(["replay", "full.loss.parameter-input", "torch"])
    told = capsys.readouterr().out
    assert "got None" in " ".join(told.split())
    assert "full.loss.parameter-input: failed\n" in told


def test_if_no_script_can_be_written_none_is_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keeping.py").write_text(
        "import torch\n\nKEPT = []\n\n"
        "def stage_backward(outputs, grads, inputs):\n"
        "    KEPT.append(outputs)\n"
        "    torch.autograd.backward(outputs, grads, retain_graph=True)\n"
        "    return tuple(one.grad for one in inputs)\n",
        encoding="utf-8",
    )
    assert main(["replay", "lifetime.full.mlp", "keeping.py"]) == 1
    assert "write a script" not in capsys.readouterr().out


def test_the_script_of_a_device_runs_as_printed(tmp_path: Path) -> None:
    words = ("replay", "full.gradients.mlp", "torch", "--device", "simpy", "--dtype", "float32", "--script", "x.py")
    command = [sys.executable, "-m", "gradconform", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "it runs full.gradients.mlp with torch, gradconform.plugins.devices.simpy and" in " ".join(
        done.stdout.split()
    )
    done = subprocess.run([sys.executable, "x.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("right: ")


def test_an_adapter_that_withholds_input_gradients_of_first_stages_has_scripts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["replay", CHECK, "torch-stage"]) == 1
    assert f"gradconform replay {CHECK} torch-stage --script defect.py" in capsys.readouterr().out


def test_the_printed_script_command_is_quoted_for_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my defect.py"
    main(["replay", CHECK, "torch", "--script", str(path)])
    assert shlex.join(["python", str(path)]) in " ".join(capsys.readouterr().out.replace("\\\n", "").split())


@pytest.mark.parametrize("which", ["1", CHECK])
def test_a_result_of_a_report_is_replayed_with_the_same_numbers(
    which: str, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["replay", f"{report}#{which}"])
    told = capsys.readouterr().out
    assert code == 1
    assert "cpu float64, seed 7" in told
    assert "same result as in the report, to the last digit" in told


def test_another_target_can_be_replayed_from_a_report(report: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["replay", f"{report}#1", "reference-split"])
    told = capsys.readouterr().out
    assert (code, told.splitlines()[-1].partition(";")[0]) == (0, f"{CHECK}: passed")
    assert "the target's file differs from the one in the report" in " ".join(told.split())
    assert "in the report: failed" in told


def test_a_script_is_written_to_the_given_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "defect.py"
    assert main(["replay", CHECK, "torch", "--script", str(path)]) == 0
    assert "with torch and the implementation alone" in " ".join(capsys.readouterr().out.split())
    assert path.read_text().startswith('"""I MUST return plain autograd\'s input gradients')


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((CHECK,), "a check id requires a TARGET"),
        (("split.gradients.linear-hok", "torch"), "nearest: split.gradients.linear"),
        (("none.json#1",), "none.json"),
        (("{report}#2",), "expected a number from 1 to 1, got 2"),
        (("{report}#full.gradients.lstm",), "has no result for 'full.gradients.lstm'; nearest: full.gradients.mlp"),
        ((CHECK, "torch", "--script", "no/folder/x.py"), "does not exist; create it first"),
    ],
)
def test_an_impossible_replay_is_refused(
    arguments: tuple[str, ...], complaint: str, report: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *(one.format(report=report) for one in arguments)]) == 2
    assert complaint in " ".join(capsys.readouterr().err.split())


def test_a_command_names_only_non_default_options() -> None:
    done = check_stage_backward("torch", checks=[CHECK], dtype=["float32", "float64"])
    assert [sentences.command_again(done, result) for result in done] == [
        f"gradconform replay {CHECK} torch",
        f"gradconform replay {CHECK} torch --dtype float64",
    ]
