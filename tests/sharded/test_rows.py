"""The rows of a sharded stage: what each profile tries, and how a check is run again."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from gradconform.cli.arguments import parser
from gradconform.cli.run import options_of
from gradconform.covering.space import Space, covered
from gradconform.report.sentences import command_again
from gradconform.results import Report, Result
from gradconform.sharded.cases import ShardedJob, row_of
from gradconform.sharded.dimensions import _CONSTRAINTS, ORDERS, dimensions_of, rows_of
from gradconform.sharded.stage import DescriptionError
from gradconform.sources.sharded import SOURCE
from gradconform.trial.mesh import Mesh

FACTS: dict[str, Any] = {
    "options": {"sequence_parallel": ["no-sequence-parallel", "sequence-parallel"]},
    "outputs": 2,
    "finish": False,
    "parameters": 5,
    "unsupported": [],
}
MESHES = [Mesh({"tp": 2}), Mesh({"tp": 4})]


def dimensions(**facts: Any) -> Any:
    return dimensions_of({**FACTS, **facts}, MESHES, full=True, split=True)


def test_quick_has_the_plain_row_and_every_value_once_on_the_smallest_mesh() -> None:
    found = rows_of(dimensions(), "quick")
    assert next(iter(found)) == "plain"
    assert {row[0] for row in found.values()} == {"tp2"}
    for place, dimension in enumerate(dimensions()[1:], 1):
        assert {row[place] for row in found.values()} == {one.word for one in dimension.values}


def test_standard_has_every_possible_pair_on_every_mesh() -> None:
    made = dimensions()
    found = list(rows_of(made, "standard").values())
    assert set(Space(made, _CONSTRAINTS).possible(2)) <= covered(found, 2)
    assert len(found) < 60


@pytest.mark.parametrize("name", ["mesh", "weights", "memory"])
def test_an_option_with_the_name_of_a_dimension_of_the_kit_is_refused(name: str) -> None:
    with pytest.raises(DescriptionError, match=f"the kit has a dimension '{name}' of its own; rename the option"):
        dimensions(options={name: ["one", "other"]})


def test_no_row_splits_a_backward_that_recomputes() -> None:
    for row in rows_of(dimensions(), "standard").values():
        assert not ({"split", "split-late", "split-three-mb"} & {*row} and "checkpoint" in row)


def test_values_that_a_stage_does_not_support_are_in_no_row() -> None:
    words = {
        word for row in rows_of(dimensions(unsupported=["checkpoint", "weights"]), "standard").values() for word in row
    }
    assert not words & {"checkpoint", "first-frozen", "others-frozen"}
    assert "expanded" in words


def test_a_misspelt_value_is_refused() -> None:
    with pytest.raises(DescriptionError, match="unknown value 'checkpiont'; nearest: checkpoint"):
        dimensions(unsupported=["checkpiont"])


def test_a_stage_with_reductions_in_finish_finds_no_values_in_place() -> None:
    words = {one.word for dimension in dimensions(finish=True) for one in dimension.values}
    assert "zeros" in words
    assert "standing" not in words


@pytest.mark.parametrize("order", ORDERS)
def test_a_program_runs_each_micro_batch_once(order: str) -> None:
    actions = ORDERS[order].split()
    for letter in "FBIW":
        mbs = [int(action[1:]) for action in actions if action[0] == letter]
        assert len(mbs) == len(set(mbs))
    backward = {action[1:] for action in actions if action[0] in "BW"}
    assert backward == {action[1:] for action in actions if action[0] == "F"}


def test_a_job_is_read_as_it_was_written() -> None:
    made = dimensions()
    rows = tuple(row_of(name, made, words) for name, words in rows_of(made, "quick").items())
    job = ShardedJob(
        target="a.py:B", backward="", cases=rows, kinds=("program", "norm"), device="cpu", dtype="float32", seed=3,
        timeout=5.0,
    )  # fmt: skip
    assert ShardedJob.from_json(job.to_json()) == job
    assert rows[1].options == {"sequence_parallel": 1}


def test_the_command_that_reproduces_a_check_keeps_what_changes_it() -> None:
    words = [
        "sharded",
        "a.py:B",
        "--profile",
        "standard",
        "--dtype",
        "bfloat16",
        "--backward",
        "torch",
        "--shard",
        "1/2",
    ]
    options = options_of(parser().parse_args(words), SOURCE.values)
    result = Result(
        check="sharded.norm.plain",
        level="MUST",
        device="cpu",
        dtype="bfloat16",
        status="failed",
        requirement="It MUST.",
    )
    report = Report(
        profile="standard", target={"text": "a.py:B", "name": "b"}, environment={}, seed=20, manifest=1, planned=1,
        extra=("a sharded stage",), results=[result], options=options.to_json(),
    )  # fmt: skip
    assert command_again(report, result) == (
        "gradconform sharded a.py:B --profile standard --checks sharded.norm.plain --backward torch --dtype bfloat16"
    )


def test_a_mesh_numbers_ranks_row_by_row() -> None:
    mesh = Mesh({"dp": 2, "tp": 2})
    assert mesh.groups(["tp"]) == [[0, 1], [2, 3]]
    assert mesh.groups(["dp"]) == [[0, 2], [1, 3]]
    named = {ranks: mesh.named(ranks) for n in (2, 4) for ranks in combinations(range(4), n)}
    assert named[0, 1] == named[2, 3] == "tp"
    assert named[0, 2] == "dp"
    assert named[0, 3] == "ranks 0, 3"
    assert named[0, 1, 2, 3] == "all ranks"
