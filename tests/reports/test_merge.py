"""Shards: each check runs in exactly one, and ``gradconform merge`` gives what one run would have given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradconform import contract
from gradconform.cli import main
from gradconform.contract.plan import make_plan
from gradconform.contract.shard import Shard, ShardError
from gradconform.reading.merging import MergeError, merge
from gradconform.reading.report import read_report
from gradconform.results import Report
from gradconform.run.options import RunOptions
from gradconform.run.run import Run, check_stage_backward
from gradconform.user_input.values import SelectionError

CHECKS = contract.checks_of()

FEW = ("split.gradients.mlp*", "split.gradients.linear*", "hooks.*")
GLOBS = ("full.gradients.*", "split.gradients.*", "hooks.*")


def sharded(count: int, **options: Any) -> dict[str, Report]:
    shards = [Shard(index, count) for index in range(1, count + 1)]
    given = {"profile": "quick", "checks": GLOBS, "dtype": ("float32", "float64"), **options}
    return {f"{shard.index}.json": check_stage_backward("torch", shard=shard, **given) for shard in shards}


def without_durations(report: Report) -> Any:
    values = report.to_dict()
    return {**values, "made": "", "results": [{**result, "duration_s": 0} for result in values["results"]]}


@pytest.fixture(scope="module")
def three() -> dict[str, Report]:
    return sharded(3)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_each_item_is_in_one_shard_and_items_that_share_a_trial_are_together(count: int) -> None:
    cells = [("cpu", dtype) for dtype in ("float32", "bfloat16")]
    whole = make_plan(CHECKS, profile="full", cells=cells)
    shards = [make_plan(CHECKS, profile="full", cells=cells, shard=Shard(i + 1, count)) for i in range(count)]
    assert sorted(item.name for plan in shards for item in plan.items) == sorted(item.name for item in whole.items)
    assert {plan.manifest for plan in shards} == {whole.manifest}
    homes: dict[Any, set[int]] = {}
    for index, plan in enumerate(shards):
        for item in plan.items:
            homes.setdefault((item.dtype, item.check.trials[0]), set()).add(index)
    assert {len(where) for where in homes.values()} == {1}
    sizes = [len(plan.items) for plan in shards]
    assert max(sizes) - min(sizes) <= 0.1 * len(whole.items)


def test_a_shard_is_the_same_each_time_it_is_made() -> None:
    def names() -> list[str]:
        return [item.name for item in make_plan(CHECKS, shard=Shard(2, 5)).items]

    assert names() == names()


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "1/0", "1", "1/2/3", "a/b", "-1/4", "1.0/4", "", " 1/4", "9999999/9999999"]
)
def test_an_invalid_shard_is_refused(text: str) -> None:
    with pytest.raises(ShardError, match="expected I/N with I from 1 to N"):
        Shard.parse(text)


def test_more_shards_than_checks_are_refused() -> None:
    with pytest.raises(SelectionError, match="shard 2/2 has no check of 1; use fewer shards"):
        Run(RunOptions.of("torch", checks="full.gradients.mlp", shard=Shard(2, 2)))


def test_merged_shards_equal_the_report_of_one_run(three: dict[str, Report]) -> None:
    whole = check_stage_backward("torch", profile="quick", checks=GLOBS, dtype=("float32", "float64"))
    shuffled = {name: three[name] for name in ("2.json", "3.json", "1.json")}
    read_back = {name: read_report(report.to_json()) for name, report in shuffled.items()}
    assert without_durations(merge(read_back)) == without_durations(whole)


def test_a_shard_gives_no_verdict_on_the_contract() -> None:
    (right,) = sharded(1, checks=None).values()
    assert (right.verdict, right.exit_code, right.conforms) == ("failed", 1, False)
    passed, _ = (check_stage_backward("reference-split", profile="quick", shard=Shard(index, 2)) for index in (1, 2))
    assert (passed.verdict, passed.exit_code, passed.conforms, passed.complete) == ("passed", 0, False, True)
    assert passed.manifest == passed.selected > passed.planned
    passed.results.pop()
    assert (passed.verdict, passed.exit_code) == ("incomplete", 5)


def test_a_shard_of_a_selection_is_incomplete() -> None:
    report = check_stage_backward("reference-split", checks="full.*", shard=Shard(1, 2))
    assert (report.verdict, report.exit_code) == ("incomplete", 5)


def test_a_missing_result_of_a_shard_is_missing_in_the_merged_report(three: dict[str, Report]) -> None:
    short = {**three, "2.json": read_report(three["2.json"].to_json())}
    short["2.json"].results.pop()
    assert merge(short).summary["not_run"] == 1


def with_change(change: Callable[[Report], object]) -> Callable[[Report], Report]:
    def changed(report: Report) -> Report:
        copy = read_report(report.to_json())
        change(copy)
        return copy

    return changed


def _set(field: str, value: object) -> Callable[[Report], Report]:
    return with_change(lambda report: setattr(report, field, value))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_set("seed", 7), "2.json and 1.json are not shards of one run: seed is 7, not 20"),
        (_set("kit", "9.9"), "kit is '9.9', not "),
        (_set("contract", "2.0"), "contract is '2.0', not "),
        (_set("profile", "full"), "profile is 'full', not 'quick'"),
        (_set("target", {"text": "torch", "name": "torch", "sha256": "0"}), "target sha256 is '0', not "),
        (_set("environment", {"torch": "2.12"}), "environment torch is '2.12', not "),
        (_set("shard", None), "2.json is of a run without --shard"),
        (
            _set("shard", {"count": 3, "index": 2, "selected": 9, "sha256": "0", "positions": []}),
            "shard selected is 9,",
        ),
    ],
    ids=["seed", "kit", "contract", "profile", "target", "environment", "whole", "plan"],
)
def test_reports_that_do_not_belong_together_are_refused(
    three: dict[str, Report], change: Callable[[Report], Report], told: str
) -> None:
    with pytest.raises(MergeError) as refused:
        merge({**three, "2.json": change(three["2.json"])})
    assert told in str(refused.value)


def test_a_missing_or_duplicate_shard_is_named(three: dict[str, Report]) -> None:
    with pytest.raises(MergeError, match="the report of shard 2/3, 3/3 is missing; expected all 3 shards"):
        merge({"1.json": three["1.json"]})
    with pytest.raises(MergeError, match=r"1\.json and again\.json are both shard 1; expected each shard once"):
        merge({**three, "again.json": three["1.json"]})
    with pytest.raises(MergeError, match="no report to merge"):
        merge({})


def test_the_command_runs_and_merges_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for index in (1, 2):
        assert main(["run", "reference-split", "--profile", "quick", f"--shard={index}/2", f"--json={index}.json"]) == 0
        out = capsys.readouterr().out
        assert f"shard {index} of 2, " in out
        assert out.splitlines()[-1].endswith("checks passed; 'gradconform merge' gives the verdict")
    assert main(["merge", "1.json", "2.json", "--json", "whole.json"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("reference-split 1.0.0 conforms to contract 1.3 in")
    assert read_report("whole.json").conforms
    assert main(["merge", "1.json"]) == 2
    assert "the report of shard 2/2 is missing" in capsys.readouterr().err
    (tmp_path / "cut.json").write_text((tmp_path / "1.json").read_text()[:500])
    assert main(["merge", "cut.json", "2.json"]) == 2
    assert "so the file may be truncated" in capsys.readouterr().err


@pytest.mark.slow
def test_shards_run_by_pytest_merge_to_one_run_with_any_number_of_processes(pytester: pytest.Pytester) -> None:
    options = (
        "--gradconform=torch",
        "--gradconform-profile=quick",
        *(f"--gradconform-checks={glob}" for glob in FEW),
    )
    for index, processes in ((1, "-n0"), (2, "-n2")):
        pytester.runpytest(*options, f"--gradconform-shard={index}/2", f"--gradconform-json={index}.json", processes)
    merged = merge({name: read_report(pytester.path / name) for name in ("1.json", "2.json")})
    library = check_stage_backward("torch", profile="quick", checks=FEW)
    assert without_durations(merged) == json.loads(json.dumps(without_durations(library)))


def test_pytest_refuses_an_invalid_shard(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--gradconform=torch", "--gradconform-shard=3/2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*gradconform_shard: expected I/N *; got '3/2'*"])
