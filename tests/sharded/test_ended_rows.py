"""A row in which ranks ended: who is charged, and what is said of each rank."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from gradconform.pipeline.exchange import Mark, Outcome
from gradconform.pipeline.verdicts import Ended
from gradconform.results import Result
from gradconform.sharded.cases import Row, ShardedJob, calls_of, checks_of
from gradconform.sharded.collectives import Call
from gradconform.sharded.runs import _ended

ROW = Row(id="plain", words=(), tried="tp=2", mesh={"tp": 2})
JOB = ShardedJob(
    target="a.py:B", backward="", cases=(ROW,), kinds=("program", "outputs"), device="cpu", dtype="float32", seed=0,
    timeout=5.0,
)  # fmt: skip
CALL = "all_reduce over tp at mine.py:3, in forward"
TRACEBACK = 'Traceback:\n  File "/home/mine.py", line 3, in forward\nValueError: no'


def ended(folder: Path, **values: Any) -> list[Result]:
    return list(_ended(ROW, checks_of([ROW], ["program", "outputs"]), Ended(**values), JOB, folder))


def raised(rank: int, at: float = 1.0, frame: str = TRACEBACK) -> Outcome:
    return Outcome(case="plain", rank=rank, raised=frame, cause="ValueError: no", at=at)


@pytest.mark.parametrize(
    ("action", "verdict"), [("forward", ("failed", "error")), ("", ("error", "kit"))], ids=["its own code", "the kit"]
)
def test_an_error_is_charged_to_the_stage_only_inside_its_code(
    action: str, verdict: tuple[str, str], tmp_path: Path
) -> None:
    first, second = ended(tmp_path, marks={0: Mark(inside=bool(action), action=action)}, outcomes=[raised(0)])
    assert (first.status, first.kind) == verdict
    assert (second.status, second.message) == (
        "not_run",
        "the ranks ended before it could be judged; see sharded.program.plain",
    )


def test_an_error_of_a_collective_is_named_after_the_one_that_caused_it(tmp_path: Path) -> None:
    collective = (
        'Traceback:\n  File "/x/site-packages/torch/distributed/c10d.py", line 9, in all_reduce\nRuntimeError: peer'
    )
    marks = {0: Mark(inside=True, action=CALL), 1: Mark(inside=True, action=CALL)}
    first, _ = ended(tmp_path, marks=marks, outcomes=[raised(0, 1.0, collective), raised(1, 2.0)])
    assert first.message.splitlines() == [
        "rank 1 raised ValueError: no at mine.py:3, in forward", f"rank 0 was in {CALL}", "tp=2",
    ]  # fmt: skip


def test_a_hanging_rank_is_named_with_the_collective_in_which_it_waits(tmp_path: Path) -> None:
    stack = 'File "/x/torch/distributed/c10d.py", line 9 in all_reduce\n  File "/home/mine.py", line 3 in forward'
    marks = {0: Mark(inside=True, action=CALL), 1: Mark(action="the end of its program")}
    first, _ = ended(tmp_path, marks=marks, outcomes=[], hung={0: stack})
    assert first.message.splitlines() == [
        "the ranks did not end the row within 5 s",
        f"rank 0 waits in {CALL}; rank 1 had reached the end of its program",
        "tp=2",
    ]


@pytest.mark.parametrize(
    ("second", "overload", "verdict"),
    [
        ("all_reduce", "", ("failed", "error")),
        ("all_reduce", "a load of 20", ("error", "environment")),
        ("all_gather", "a load of 20", ("failed", "error")),
    ],
)
def test_a_hang_on_an_overloaded_machine_is_charged_only_if_the_ranks_call_other_collectives(
    second: str, overload: str, verdict: tuple[str, str], tmp_path: Path
) -> None:
    for rank, name in enumerate(["all_reduce", second]):
        call = Call(name=name, ranks=(0, 1), elements=6, line="mine.py:3, in forward")
        (tmp_path / calls_of(rank)).write_text(f"{json.dumps(asdict(call))}\n", encoding="utf-8")
    marks = {rank: Mark(inside=True, action=CALL) for rank in range(2)}
    first, _ = ended(tmp_path, marks=marks, outcomes=[], hung={0: ""}, overload=overload)
    assert (first.status, first.kind) == verdict
    assert (overload in first.message.splitlines()) == bool(overload)


def test_ranks_that_end_outside_the_stage_are_an_error_of_the_environment(tmp_path: Path) -> None:
    first, _ = ended(tmp_path, marks={0: Mark(action="joining the process group")}, outcomes=[], codes={0: -9})
    assert (first.status, first.kind) == ("error", "environment")
    assert "rank 0 died (SIGKILL); it had reached joining the process group" in first.message
