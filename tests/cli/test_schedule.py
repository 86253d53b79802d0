from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform import check_stage_backward
from gradconform.fixtures.schedules import ScheduleError, recorded

Command = Callable[..., Any]


@pytest.fixture
def zbv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A schedule that torch's class gives, in the current folder."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "My ZBV.csv"
    path.write_text(recorded("ZBVZeroBubble-2x2x3").to_csv(), encoding="utf-8")
    return path


def test_a_schedule_file_is_judged_instead_of_the_contract(command: Command, zbv: Path) -> None:
    done = command("run", "reference-split", "--schedule", zbv.name)
    assert (done.code, done.err) == (0, "")
    assert_expected_inline(
        re.sub(r"file +\S+\n", "", done.out),
        """\
gradconform 1.0.0 judges reference-split 1.0.0
on        My ZBV: 2 ranks, 4 stages, 3 micro-batches
checks    extra checks beside contract 1.3: 1 check on cpu float32, seed 20

schedule     1 of 1    1 passed

1 of the 1 passed checks that compare values are bit-equal to plain autograd
1 of 1 extra checks beside contract 1.3 ran
reference-split 1.0.0: 1 of 1 check passed; no verdict on contract 1.3, which was not run
""",
    )


def test_the_report_states_that_the_contract_was_not_run(command: Command, zbv: Path, tmp_path: Path) -> None:
    done = command("run", "torch", "--schedule", zbv.name, "--json", str(tmp_path / "out.json"))
    assert done.code == 0
    found = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert found["extra"] == ["My ZBV: 2 ranks, 4 stages, 3 micro-batches"]
    assert (found["verdict"], found["conforms"]) == ("passed", False)
    assert [result["check"] for result in found["results"]] == ["schedule.file.my-zbv"]
    assert (found["summary"]["manifest"], found["summary"]["planned"]) == (1, 1)


def test_several_schedules_dtypes_and_globs_can_be_combined(command: Command, zbv: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "my_zbv.csv"
    other.parent.mkdir()
    other.write_text("0F0,0B0\n", encoding="utf-8")
    given = ("--schedule", zbv.name, "--schedule", str(other), "--schedule", zbv.name, "--dtype", "float32,bfloat16")
    done = command("run", "reference-split", *given, "--list")
    assert [line.split()[0] for line in done.out.splitlines()[:-1]] == [
        "schedule.file.my-zbv[cpu-float32]",
        "schedule.file.my-zbv-2[cpu-float32]",
        "schedule.file.my-zbv[cpu-bfloat16]",
        "schedule.file.my-zbv-2[cpu-bfloat16]",
    ]
    assert " ".join(done.last.split()).startswith("4 of 4 extra checks beside contract")
    assert command("run", "reference-split", *given).code == 0
    narrowed = command("run", "reference-split", *given, "--checks", "*-2")
    assert narrowed.code == 5
    assert narrowed.last == "reference-split 1.0.0: incomplete, no verdict: 2 of 4 checks ran, none failed"


def test_a_wrong_backward_fails_on_a_schedule_file(
    command: Command, zbv: Path, target_file: Callable[..., Path]
) -> None:
    target_file(
        "from gradconform.reference.split import *\n"
        "from gradconform.reference import split\n"
        "calls = []\n"
        "def stage_backward_weight(weights, param_groups):\n"
        "    calls.append(param_groups)\n"
        "    return None if len(calls) == 5 else split.stage_backward_weight(weights, param_groups)\n"
    )
    done = command("run", "backward.py", "--schedule", zbv.name)
    assert done.code == 1
    assert "likely cause: micro-batch 0 missing" in " ".join(done.out.split()) or "got None" in done.out
    assert done.last.endswith(": 1 of 1 check failed; no verdict on contract 1.3, which was not run")


def test_a_target_without_a_feature_of_the_schedule_is_incomplete(
    command: Command, zbv: Path, target_file: Callable[..., Path]
) -> None:
    done = command("run", str(target_file()), "--schedule", zbv.name)
    assert done.code == 5
    assert "not claimed: split" in done.out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0F0,0I0\n1F0,1B0\n", "the schedule 'bad.csv', row 1 (rank 0), column 2: 0I0 has no 0W0 in its row"),
        ("0F0,0B0\n1F0,2B0\n", "the schedule 'bad.csv', row 2 (rank 1), column 2: 2B0 has no 2F0 in its row"),
        (
            "0F0,0B0\n1F0,B0\n",
            "the schedule 'bad.csv', row 2 (rank 1), column 2: expected stage, letter and micro-batch",
        ),
    ],
)
def test_a_bad_file_is_refused_before_anything_runs(
    text: str, said: str, command: Command, zbv: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.csv").write_text(text, encoding="utf-8")
    done = command("run", "torch", "--schedule", zbv.name, "--schedule", "bad.csv")
    assert (done.code, done.out) == (2, "")
    assert said in " ".join(done.err.split())


def test_a_missing_file_is_refused(command: Command, zbv: Path) -> None:
    done = command("run", "torch", "--schedule", f"{zbv.stem}.cvs")
    assert (done.code, done.out) == (2, "")
    assert "cannot read the schedule 'My ZBV.cvs': No such file or directory" in " ".join(done.err.split())


def test_a_schedule_run_has_no_checks_of_the_contract(command: Command, zbv: Path) -> None:
    done = command("run", "torch", "--schedule", zbv.name, "--checks", "full.*")
    assert done.code == 2
    assert "check pattern 'full.*' matches no check; the areas are schedule" in " ".join(done.err.split())


def test_the_library_accepts_a_schedule_a_path_or_a_list(zbv: Path) -> None:
    for given in (zbv, str(zbv), recorded("GPipe-2x1x3"), [zbv, recorded("GPipe-2x1x3")]):
        report = check_stage_backward("autograd", schedule=given)
        assert (report.verdict, report.conforms, report.exit_code) == ("passed", False, 0)
        report.raise_if_failed()
    with pytest.raises(ScheduleError, match=r"cannot read the schedule 'none.csv'"):
        check_stage_backward("autograd", schedule="none.csv")
