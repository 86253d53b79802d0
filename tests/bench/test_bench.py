"""``gradconform bench``: what it makes of a report, what it finds, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gradconform.bench import DEFECTS, TARGET, Defect
from gradconform.benching import Bench, CommandReport, Outcome, judge_bench
from gradconform.benching.command_report import report_of_command
from gradconform.benching.commands import _ended, _Running
from gradconform.cli import bench as command
from gradconform.cli import main
from gradconform.exits import (
    EXIT_CONFORMS,
    EXIT_DOES_NOT,
    EXIT_ENVIRONMENT,
    EXIT_INCOMPLETE,
    EXIT_INTERRUPTED,
    EXIT_KIT,
    EXIT_USAGE,
)
from tests.daily_part import part_of_today

#: One of each class that takes a few seconds, on the check that shows it.
HANDFUL = {
    "pytorch-142229": ("run", TARGET, "--checks", "split.gradients.output-view"),
    "transformerengine-2142": ("run", TARGET, "--checks", "accumulate.in_flight.*"),
    "unsloth-4533": ("run", TARGET, "--no-isolation", "--checks", "full.gradients.layer-norm"),
    "transformers-34191": ("pipeline", TARGET, "--checks", "step.ddp-tokens"),
    "torchtitan-596": ("pipeline", TARGET, "--checks", "step.tied-clipped"),
    "automodel-3816": ("sharded", TARGET, "--checks", "sharded.norm.plain"),
}
#: Those that repeat another's kind of command.
NIGHTLY = {"transformerengine-2142", "transformers-34191"}
#: The variable that names another part of the sharded defects than today's, such as 3/6, and the number of parts.
VARIABLE, PARTS = "GRADCONFORM_SHARDED_BENCH", 6
MAIN = "gradconform.cli:main"
RIGHT = CommandReport(command=("run", "right"), exit_code=0, seconds=1.0, judged=3)
WRONG = CommandReport(
    command=("run", "wrong"), exit_code=1, seconds=1.0, judged=3, failed=("a.b",), causes=(("missing", 1),)
)


def result(check: str, status: str, *kinds: str, **more: Any) -> dict[str, Any]:
    """Return a result as a report has it; each kind of cause is that of a finding, none of one without."""
    findings = [{"cause": {"kind": kind, **more} if kind else None} for kind in kinds]
    return {"check": check, "status": status, "kind": "mismatch", "message": "m", "findings": findings}


def told(tmp_path: Path, *results: dict[str, Any]) -> CommandReport:
    """Return what is read from a report of these results."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"results": results}), encoding="utf-8")
    return report_of_command(("run", "x"), 1, 2.0, path, "")


def test_the_cause_of_most_failed_checks_is_first(tmp_path: Path) -> None:
    seen = told(
        tmp_path,
        result("a", "failed", "missing"),
        result("b", "failed", "", "missing"),
        result("c", "failed", ""),
        result("d", "passed"),
        result("e", "unsupported"),
    )
    assert (seen.failed, seen.judged, seen.causes) == (("a", "b", "c"), 4, (("missing", 2), ("mismatch", 1)))
    assert not seen.silent


def test_both_alternatives_of_an_ambiguous_cause_are_counted(tmp_path: Path) -> None:
    inner = [{"kind": "missing"}, {"kind": "only"}]
    seen = told(tmp_path, result("a", "failed", "either", causes=inner))
    assert dict(seen.causes) == {"missing": 1, "only": 1}


def test_a_cause_that_refers_to_another_check_is_not_counted(tmp_path: Path) -> None:
    seen = told(
        tmp_path,
        result("a", "failed", "copies_unequal"),
        result("b", "failed", "of_wrong_output"),
        result("c", "failed", "of_wrong_gradient", "scaled"),
    )
    assert seen.failed == ("a", "b", "c")
    assert dict(seen.causes) == {"copies_unequal": 1, "scaled": 1}


def test_a_command_without_a_report_finds_nothing_and_is_not_silent(tmp_path: Path) -> None:
    seen = report_of_command(("run", "x"), 2, 0.1, tmp_path / "none.json", "no such\ntarget")
    assert seen.errors == ("no report: no such target",)
    assert (seen.silent, seen.failed, seen.causes) == (False, (), ())


def test_a_report_with_no_judged_check_is_not_silent(tmp_path: Path) -> None:
    assert not told(tmp_path, result("a", "unsupported")).silent
    assert told(tmp_path, result("a", "passed")).silent


@pytest.mark.parametrize(
    ("causes", "record", "expected"),
    [
        (("missing",), {}, True),
        (("only",), {}, False),
        (("only",), {"otherwise": "So."}, True),
        (("missing",), {"otherwise": "So."}, False),
        (("missing",), {"missed": "So."}, False),
    ],
)
def test_an_outcome_is_compared_with_its_record(
    causes: tuple[str, ...], record: dict[str, str], *, expected: bool
) -> None:
    defect = replace(some(), causes=causes, missed="", otherwise="")
    assert Outcome(replace(defect, **record), WRONG, RIGHT).as_recorded is expected


@pytest.mark.parametrize(
    ("causes", "cause"),
    [((("only", 2), ("missing", 2)), "missing"), ((("only", 3), ("missing", 2)), "only"), ((), None)],
)
def test_if_causes_have_equal_counts_the_expected_cause_wins(
    causes: tuple[tuple[str, int], ...], cause: str | None
) -> None:
    outcome = Outcome(replace(some(), causes=("missing",)), replace(WRONG, causes=causes), RIGHT)
    assert (outcome.cause, outcome.right_cause) == (cause, cause == "missing")


def test_a_failing_fixed_version_never_matches_the_record() -> None:
    assert not Outcome(replace(some(), causes=("missing",), missed="", otherwise=""), WRONG, WRONG).as_recorded


def some() -> Defect:
    return next(iter(DEFECTS.values()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in HANDFUL]
)
def test_a_real_defect_is_found_with_its_cause_and_its_fixed_version_passes(name: str) -> None:
    found: list[Outcome] = []
    chosen = [replace(DEFECTS[name], command=HANDFUL[name])]
    judge_bench(chosen, MAIN, workers=2, imports=("torch",), on_outcome=found.append)
    (outcome,) = found
    assert (outcome.found, outcome.right_cause, outcome.silent) == (True, True, True), outcome.to_dict()


@pytest.mark.slow
def test_the_sharded_defects_of_a_part_are_as_recorded(record_property: Callable[..., None]) -> None:
    shard = part_of_today(PARTS, VARIABLE)
    record_property(VARIABLE, str(shard))
    sharded = [one for one in DEFECTS.values() if one.area.startswith("sharded ")]
    found: list[Outcome] = []
    some_of_them = sharded[shard.index - 1 :: shard.count]
    judge_bench(some_of_them, MAIN, workers=2, imports=("torch",), on_outcome=found.append)
    assert [one.to_dict() for one in found if not one.as_recorded] == []
    assert len(found) == len(some_of_them) > 0


def test_list_names_each_defect_and_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list", "pytorch-1[34]*"]) == EXIT_CONFORMS
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [
        name for name in DEFECTS if name.startswith(("pytorch-13", "pytorch-14"))
    ]
    assert "https://github.com/pytorch/pytorch/issues/142229" in "".join(lines)


def test_a_class_selects_its_defects() -> None:
    areas = {defect.area for defect in command.chosen_defects(["kernels"])}
    assert areas == {"kernels"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "pytorch-1"], "'pytorch-1' matches no defect of the bench, nor a class; nearest: pytorch-1"),
        (["bench", "kernels", "--write", "page.md"], "--write writes the page of all"),
        (["bench", "--json", "a.json", "--list"], "not allowed with argument"),
    ],
)
def test_invalid_bench_arguments_are_refused_with_a_reason(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == EXIT_USAGE
    assert said in "".join(capsys.readouterr())


_Judge = Callable[..., None]


def told_at_once(*outcomes: Outcome, then: type[BaseException] | None = None) -> _Judge:
    """Return what tells outcomes in the place of judging, and raises behind them."""

    def judge(
        defects: Sequence[Defect],
        _: Any,
        *,
        workers: int,
        imports: Sequence[str],
        on_outcome: Callable[[Outcome], None],
    ) -> None:
        assert (len(defects) > 0, workers > 0, len(imports) > 0) == (True, True, True)
        for outcome in outcomes:
            on_outcome(outcome)
        if then is not None:
            raise then

    return judge


def test_ctrl_c_reports_the_defects_judged_so_far(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    defect = replace(DEFECTS["rae-67"], causes=("missing",))
    monkeypatch.setattr(command, "judge_bench", told_at_once(Outcome(defect, WRONG, RIGHT), then=KeyboardInterrupt))
    assert main(["bench", "rae-67", "verl-7493"]) == EXIT_INTERRUPTED
    lines = capsys.readouterr().out.splitlines()
    assert "The bench was interrupted: 1 defect not judged" in lines
    assert lines[-1].startswith("1 of 1 defects found, 1 of these with the right cause; 0 of 1 fixed versions accused")


def test_an_outcome_unlike_its_record_sets_the_exit_code_and_is_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "judge_bench", told_at_once(Outcome(DEFECTS["rae-67"], RIGHT, WRONG)))
    assert main(["bench", "rae-67", "--json", "-"]) == EXIT_DOES_NOT
    values = json.loads(capsys.readouterr().out)
    (one,) = values["defects"]
    assert (values["whole"], values["found"], values["accused"], one["accused"]) == (True, 0, 1, ["a.b"])
    assert (one["found"], one["as_recorded"]) == (False, False)


def test_a_defect_whose_library_is_not_installed_is_not_judged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    absent = report_of_command(("run", "x"), EXIT_ENVIRONMENT, 0.1, tmp_path / "none.json", "x is not installed")
    missing, found = Outcome(DEFECTS["rae-67"], absent, RIGHT), Outcome(right_record("verl-7493"), WRONG, RIGHT)
    monkeypatch.setattr(command, "judge_bench", told_at_once(missing, found))
    page = tmp_path / "bench.md"
    monkeypatch.setattr(command, "DEFECTS", {"rae-67": missing.defect, "verl-7493": found.defect})
    assert main(["bench", "--write", str(page)]) == EXIT_INCOMPLETE
    told_to_user = capsys.readouterr().out
    assert "rae-67                             not judged\n    x is not installed" in told_to_user
    assert "MISSED" not in told_to_user
    assert f"{page} is not written: not all of its defects were judged" in told_to_user.replace("\n", " ")
    assert not page.exists()
    last = told_to_user.splitlines()[-1]
    assert last.startswith(
        "1 of 1 defects found, 1 of these with the right cause; 0 of 1 fixed versions accused; 1 not"
    )
    values = missing.to_dict()
    assert (values["judged"], values["found"], values["as_recorded"]) == (False, False, False)


def right_record(name: str) -> Defect:
    return replace(DEFECTS[name], causes=("missing",), missed="", otherwise="")


def lives(process: str) -> bool:
    """Tell whether a process is there and has not ended."""
    try:
        return "\nState:\tZ" not in Path("/proc", process, "status").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_raises_finds_nothing_and_its_error_is_reported() -> None:
    (outcome,) = judged_by("time:sleep")  # which takes no words
    assert (outcome.found, outcome.silent, outcome.broken.exit_code) == (False, False, EXIT_KIT)
    assert "TypeError" in outcome.broken.errors[0]


def test_processor_time_is_reported_per_command_and_in_total() -> None:
    outcomes = judged_by("builtins:len")
    bench = Bench(planned=[], outcomes=outcomes, seconds=1.0, workers=1, environment={})
    assert outcomes[0].broken.processor > 0.0
    assert bench.processor == outcomes[0].broken.processor + outcomes[0].fixed.processor


def judged_by(command: str) -> list[Outcome]:
    """Judge a defect by what is called with the words of a command."""
    found: list[Outcome] = []
    judge_bench([some()], command, workers=1, on_outcome=found.append)
    return found


def test_a_command_that_exceeds_its_time_is_killed() -> None:
    process = os.posix_spawn("/bin/sleep", ["sleep", "600"], os.environ, setsid=True)
    running = {process: _Running(7, time.monotonic(), time.monotonic())}
    while (ended := _ended(running)) is None:
        time.sleep(0.01)
    assert (ended["number"], ended["code"], running) == (7, -signal.SIGKILL, {})


def test_an_interrupted_run_leaves_no_process(tmp_path: Path) -> None:
    begun, target = tmp_path / "begun", tmp_path / "slow.py"
    target.write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(begun)!r}).write_text(str(os.getpid()))\n"
        "def stage_backward(*_):\n    time.sleep(600)\n",
        encoding="utf-8",
    )
    quick = replace(some(), command=("list", "full.gradients.m*"), broken="a", fixed="b")
    slow = replace(some(), command=("run", TARGET, "--no-isolation"), broken=str(target), fixed=str(target))

    def stop(_: Outcome) -> None:
        while not (begun.exists() and begun.read_text(encoding="utf-8")):
            time.sleep(0.05)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        judge_bench([quick, slow], MAIN, workers=2, on_outcome=stop)
    while lives(begun.read_text(encoding="utf-8")):
        time.sleep(0.05)  # what was killed goes in no time, and what was left to itself never
