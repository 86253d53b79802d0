"""What a case is charged to, given how a correct split backward ends in it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.judge.finding import Finding
from gradconform.judge.values import NONFINITE
from gradconform.pipeline import ranks
from gradconform.pipeline.cases import cases_of
from gradconform.pipeline.exchange import Job, Mark, Marker, Outcome, read_mark, read_outcomes
from gradconform.pipeline.training_step.composition import step_cases
from gradconform.pipeline.verdicts import Ended, Verdict, charged, compared_with_unchanged_torch, of_split, verdict_on

GLOO = "rank 1 raised RuntimeError: Pair is not connected ([127.0.0.1]:{port}$1 <--> [none]) at the start of the case"


CASE = cases_of(["GPipe"], ranks=2)[0]
STEP = step_cases("quick")[0]


def raised(port: int) -> Verdict:
    result = CASE.result("cpu", "float32", status="failed", kind="error", message="raised")
    return Verdict(result=result, how="raised", where=GLOO.format(port=port))


def test_a_written_outcome_is_read_back_with_the_numbers_of_its_findings(tmp_path: Path) -> None:
    cause = Cause(Mistake.SCALED, factors=(0.5,))
    finding = Finding("mismatch", "rank 0, input 0", "0B0", "worst at [0]", 2.0, 1e-6, 2e6, cause)
    outcome = Outcome(case=CASE.id, rank=0, findings=(finding,), error_ratio=2e6, bit_equal=False)
    (tmp_path / "0.jsonl").write_text(outcome.to_line(), encoding="utf-8")
    assert list(read_outcomes(tmp_path / "0.jsonl")) == [outcome]


def test_an_error_of_torchs_runtime_has_the_same_message_in_every_case() -> None:
    told = [charged(raised(port), raised(port + 1), CASE).message for port in (3993, 6576)]
    says = "rank 1 raised RuntimeError: Pair is not connected at the start of the case"
    assert told == [f"torch's runtime also raises with a correct split backward: {says}"] * 2
    found = charged(raised(3993), raised(6576), CASE)
    assert (found.status, found.kind) == ("unsupported", None)


def test_an_error_that_a_correct_split_backward_avoids_is_charged_to_the_target() -> None:
    right = raised(1)
    right = replace(right, result=replace(right.result, status="passed", kind=None, message=""), how=None)
    assert charged(raised(1), right, CASE).status == "failed"


@pytest.mark.parametrize(
    ("launcher", "status", "says"),
    [("", "failed", "rank 0 ended without a message"), ("SIGKILL ended all", "error", "SIGKILL ended all")],
)
def test_ranks_that_end_with_a_killed_launcher_are_not_a_target_failure(launcher: str, status: str, says: str) -> None:
    job = Job(target="torch", cases=(CASE,), device="cpu", dtype="float32", seed=0, timeout=1.0)
    marks = {rank: Mark(case=CASE.id, action=f"{rank}B1", inside=not rank) for rank in range(2)}
    found = verdict_on(CASE, Ended(marks=marks, outcomes=(), launcher=launcher), job).result
    assert (found.status, found.message.splitlines()[bool(launcher)][: len(says)]) == (status, says)


@pytest.mark.parametrize(("load", "status"), [(0.0, "failed"), (7.9, "failed"), (8.0, "error"), (17.2, "error")])
def test_a_hang_is_charged_to_nobody_if_the_machine_has_far_more_work_than_cores(
    load: float, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks.os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(ranks.os, "cpu_count", lambda: 2)
    stack = (
        'Current thread 0x1 (most recent call first):\n  File "ours.py", line 3 in wait\n  File "ours.py", line 9 in B'
    )
    ended = Ended(
        marks={0: Mark(case=STEP.id, action="act 1 (train)", inside=True)}, outcomes=(), hung={0: stack},
        overload=ranks._overload_of(2),
    )  # fmt: skip
    job = Job(target="torch", cases=(STEP,), device="cpu", dtype="float32", seed=0, timeout=60.0, runtime=True)
    result = verdict_on(STEP, ended, job).result
    first, second, *_ = result.message.splitlines()
    assert (result.status, result.kind) == (status, "error" if status == "failed" else "environment")
    assert first == "rank 0 took longer than 60 s at act 1 (train), in the implementation under test"
    assert second.startswith("nothing is charged: the machine has a load of ") == (status == "error")
    assert result.message.endswith('  File "ours.py", line 3 in wait')


def test_an_error_inside_a_runtime_is_charged_to_it_and_the_first_error_is_reported(tmp_path: Path) -> None:
    marker = Marker(tmp_path / "mark")
    marker.begin(STEP.id)
    with marker.within():
        marker.note("0F0")
        noted = read_mark(tmp_path / "mark")
    assert (noted.action, noted.inside, read_mark(tmp_path / "mark").inside) == ("0F0", True, False)
    told = "RuntimeError: each parameter stands there twice", "RuntimeError: Connection closed by peer"
    outcomes = [
        Outcome(case=STEP.id, rank=rank, raised=f"Traceback\n{text}", cause=text, at=float(rank))
        for rank, text in enumerate(told)
    ]
    marks = {0: noted, 1: replace(noted, action="act 3 (train)")}
    job = Job(target="torch", cases=(STEP,), device="cpu", dtype="float32", seed=0, timeout=1.0, runtime=True)
    message = verdict_on(STEP, Ended(marks=marks, outcomes=outcomes), job).result.message
    assert message.splitlines()[0] == f"rank 0 raised {told[0]} at 0F0, in the implementation under test"


@pytest.mark.parametrize(
    ("code", "says"),
    [(-6, "rank 1 died (SIGABRT) at 0B7, in the"), (-15, "rank 0 raised RuntimeError: Read error at 0B7")],
)
def test_a_rank_that_crashed_comes_before_those_that_lost_their_connection_to_it(code: int, says: str) -> None:
    marks = {rank: Mark(case=STEP.id, action="0B7", inside=True) for rank in range(2)}
    told = "RuntimeError: Read error"
    lost = Outcome(case=STEP.id, rank=0, raised=f"Traceback\n{told}", cause=told, at=1.0)
    ended = Ended(marks=marks, outcomes=(lost,), codes={0: 1, 1: code}, words={1: "gloo::EnforceNotMet"})
    job = Job(target="torch", cases=(STEP,), device="cpu", dtype="float32", seed=0, timeout=1.0, runtime=True)
    result = verdict_on(STEP, ended, job).result
    assert (result.status, result.message.splitlines()[0][: len(says)]) == ("failed", says)
    assert ("gloo::EnforceNotMet" in result.message) == (code == -6)


def shown(*findings: Finding) -> Verdict:
    return Verdict(result=STEP.result("cpu", "float32", findings))


def test_uninitialised_memory_with_varying_values_is_charged_to_no_target() -> None:
    where, label = "rank 1, stage 1 norm.running_var", "act 1 (train)"
    number = Finding("mismatch", where, label, "expected 1, got 3", sort="buffer")
    nan = Finding("nonfinite", where + NONFINITE, label, "expected 1, got nan", sort="buffer")
    assert charged(shown(nan), shown(number), STEP).status == "unsupported"
    assert charged(shown(number), shown(nan), STEP).status == "unsupported"
    gone = Finding("missing", where, label, "expected a tensor, got None", sort="buffer")
    found = charged(shown(gone, nan), shown(number), STEP)
    assert (found.status, found.kind, len(found.findings)) == ("failed", "missing", 1)


def test_failures_that_the_reference_also_has_are_charged_only_in_earlier_acts() -> None:
    case = next(case for case in step_cases("quick") if len(case.composition.steps) > 1)
    where, acts = "rank 0, stage 0 norm.running_var", case.composition.labels
    early, late = (
        Verdict(result=case.result("cpu", "float32", [Finding("mismatch", where, act, "expected 1, got 3")]))
        for act in acts[:2]
    )
    assert [charged(late, early, case).status, charged(early, late, case).status] == ["unsupported", "failed"]


def test_a_failure_shared_with_the_plain_split_is_of_the_runtime_and_still_fails() -> None:
    label = STEP.composition.labels[0]
    counted = Finding("mismatch", "rank 0, stage 0 norm.running_var", label, "expected 1, got 3", sort="buffer")
    lost = Finding("missing", "rank 0, stage 0 up.weight", label, "expected a tensor, got None")
    right = shown()
    all_of_it = shown(counted, lost)
    plain: list[list[Verdict]] = [[shown(counted)], [right], [], [shown(lost)]]
    found = [of_split(shown(counted), [runs, [all_of_it]], STEP) for runs in plain]
    assert [one.status for one in found] == ["failed"] * 4
    assert [one.of_runtime for one in found] == [True, False, None, False]
    assert of_split(all_of_it, [[shown(counted)], [all_of_it]], STEP).of_runtime is False
    assert of_split(all_of_it, [[shown(counted), shown(lost)], [all_of_it]], STEP).of_runtime is True


def test_if_the_runtime_always_raises_a_step_fails_and_a_schedule_is_unsupported() -> None:
    step = STEP.result("cpu", "float32", status="failed", kind="error", message="raised")
    again = Verdict(result=step, how="raised", where="rank 0 raised")
    of_step = of_split(again, [[again], [again]], STEP)
    of_schedule = of_split(raised(1), [[raised(2)], [raised(3)]], CASE)
    assert (of_step.status, of_step.of_runtime) == ("failed", True)
    assert (of_schedule.status, of_schedule.of_runtime) == ("unsupported", True)


def test_an_error_is_of_the_runtime_only_if_every_plain_split_fails_too() -> None:
    step = STEP.result("cpu", "float32", status="failed", kind="error", message="raised")
    again = Verdict(result=step, how="raised", where="rank 0 raised")
    lost = Finding("missing", "rank 0, stage 0 up.weight", STEP.composition.labels[0], "expected a tensor, got None")
    of_plain = [[shown(lost)], [shown()], [again]]
    assert [of_split(again, [[again], [runs[0]]], STEP).of_runtime for runs in of_plain] == [True, False, True]
    assert of_split(again, [[shown(lost)], [shown(lost)]], STEP).of_runtime is False


def test_the_result_with_the_right_split_also_has_the_status_of_unchanged_torch() -> None:
    passed = shown().result
    assert compared_with_unchanged_torch(passed, raised(1)).as_it_is == "failed"
    assert compared_with_unchanged_torch(passed, None) == passed
