"""What a case is charged to, given how a correct split backward ends in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradconform.pipeline.cases import cases_of
from gradconform.pipeline.exchange import Job, Mark
from gradconform.pipeline.verdicts import Ended, Verdict, charged, verdict_on

GLOO = "rank 1 raised RuntimeError: Pair is not connected ([127.0.0.1]:{port}$1 <--> [none]) at the start of the case"


def raised(port: int) -> Verdict:
    case = cases_of(["GPipe"], ranks=2)[0]
    result = case.result("cpu", "float32", status="failed", kind="error", message="raised")
    return Verdict(result=result, how="raised", where=GLOO.format(port=port))


def test_what_torchs_runtime_raises_by_itself_is_told_alike_in_every_case() -> None:
    told = [charged(raised(port), raised(port + 1)).message for port in (3993, 6576)]
    says = "rank 1 raised RuntimeError: Pair is not connected at the start of the case"
    assert told == [f"torch's runtime raises with a correct split backward as well: {says}"] * 2
    found = charged(raised(3993), raised(6576))
    assert (found.status, found.kind) == ("unsupported", None)


def test_what_a_correct_split_backward_does_is_charged_to_the_target() -> None:
    right = raised(1)
    right = replace(right, result=replace(right.result, status="passed", kind=None, message=""), how=None)
    assert charged(raised(1), right).status == "failed"


@pytest.mark.parametrize(
    ("launcher", "status", "says"),
    [("", "failed", "rank 0 ended without a word"), ("SIGKILL", "error", "the launcher was ended by SIGKILL")],
)
def test_ranks_that_end_with_a_launcher_that_was_killed_are_no_failure_of_the_target(
    launcher: str, status: str, says: str
) -> None:
    case = cases_of(["GPipe"], ranks=2)[0]
    job = Job(target="torch", cases=(case,), device="cpu", dtype="float32", seed=0, timeout=1.0)
    marks = {rank: Mark(case=case.id, action=f"{rank}B1", inside=not rank) for rank in range(2)}
    found = verdict_on(case, Ended(marks=marks, outcomes=(), launcher=launcher), job).result
    assert (found.status, found.message.splitlines()[1][: len(says)]) == (status, says)
