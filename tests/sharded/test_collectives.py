"""The first collective in which ranks differ is named, with the lines that call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradconform.sharded.collectives import Call, mismatch, read_calls
from gradconform.trial.mesh import Mesh

MESH = Mesh({"dp": 2, "tp": 2})


def call(name: str, ranks: tuple[int, ...] = (0, 1), elements: int = 8, line: str = "a.py:3") -> Call:
    return Call(name, ranks, elements, line)


DIFFERS = (
    "call 1 over tp differs: rank 0 calls all_reduce over tp at a.py:3, 8 elements; "
    "rank 1 calls all_reduce over tp at a.py:3, 9 elements"
)


@pytest.mark.parametrize(
    ("logs", "said"),
    [
        ([[call("all_reduce")]] * 2, ""),
        ([[call("all_gather", elements=4)], [call("all_gather", elements=6)]], ""),  # each may pass its own number
        (
            [[call("all_reduce"), call("broadcast", line="mine.py:9")], [call("all_reduce")]],
            "call 2 over tp differs: rank 0 calls broadcast over tp at mine.py:9, 8 elements; rank 1 calls no more",
        ),
        (
            [[call("all_reduce")], [call("all_reduce", elements=9)]],
            DIFFERS,
        ),
        # Groups are apart: ranks of one may be ahead of those of another.
        ([[call("all_reduce"), call("all_reduce", (0, 2))], [call("all_reduce")], [call("all_reduce", (0, 2))]], ""),
    ],
)
def test_the_first_difference_in_a_group_is_named(logs: list[list[Call]], said: str) -> None:
    assert mismatch(logs, MESH) == said


def test_a_rank_that_may_still_call_is_no_difference() -> None:
    logs = [[call("all_reduce"), call("broadcast")], [call("all_reduce")]]
    assert mismatch(logs, MESH)
    assert not mismatch(logs, MESH, ended=False)


def test_a_line_that_a_rank_did_not_finish_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "rank-0.calls"
    whole = '{"name": "all_reduce", "ranks": [0, 1], "elements": 8, "line": "a.py:3"}\n'
    file.write_text(whole + whole[:20])
    assert read_calls(file) == [call("all_reduce")]
    assert read_calls(tmp_path / "none") == []
