"""What fails of whole training steps on torch's runtime is what scripts that use torch alone confirm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform.pipeline.training_step.composition import step_cases

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).with_name("torch_2_13")
TABLE: dict[str, Any] = tomllib.loads((FOLDER / "explained.toml").read_text(encoding="utf-8"))
BY_SCRIPT: dict[str, list[str]] = {**TABLE["scripts"], **TABLE["also"]}
MENDED: list[str] = TABLE["right_split"]["mended"]

of_this_release = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != TABLE["version"], reason=f"scripts tell of torch {TABLE['version']}"
)


def results(target: str, folder: Path, checks: str = "*", *more: str) -> dict[str, dict[str, Any]]:
    """Run training steps on a target; return the results by check."""
    command = [sys.executable, "-m", "gradconform", "pipeline", target, "--profile", "standard", *more]
    command += ["--checks", checks, "--json", "report.json"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, env=variables)
    assert (folder / "report.json").exists(), done.stderr
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    return {result["check"]: result for result in report["results"]}


@of_this_release
@pytest.mark.nightly
def test_scripts_explain_exactly_the_failing_steps_of_torchs_runtime(tmp_path: Path) -> None:
    found = results("torch", tmp_path)
    failed = {check for check, result in found.items() if result["status"] == "failed"}
    assert sorted({check for checks in BY_SCRIPT.values() for check in checks} - failed) == []
    assert sorted(failed - {check for checks in BY_SCRIPT.values() for check in checks}) == []
    assert [check for check, result in found.items() if result["status"] == "error"] == []


@of_this_release
@pytest.mark.slow
@pytest.mark.parametrize("part", [pytest.param("*", marks=pytest.mark.nightly), ",".join(MENDED[::16])])
def test_with_the_right_split_only_failures_of_torchs_runtime_remain(part: str, tmp_path: Path) -> None:
    found = results("torch", tmp_path, part, "--fixed")
    failed = {check: result for check, result in found.items() if result["status"] == "failed"}
    left = {check for script in TABLE["right_split"]["left"] for check in BY_SCRIPT[script]}
    left |= {check for checks in TABLE["right_split"]["behind"].values() for check in checks}
    assert sorted(set(failed) - left) == []
    assert [check for check, result in failed.items() if result["of_runtime"] is not True] == []
    mended = {check: found[check] for check in MENDED if check in found}
    assert {(result["as_it_is"], result["status"]) for result in mended.values()} == {("failed", "passed")}


@of_this_release
@pytest.mark.slow
def test_torch_shares_sequences_and_experts_and_only_its_counts_of_tokens_are_wrong(tmp_path: Path) -> None:
    found = results("torch", tmp_path, "step.context,step.used-on-one-replica,step.experts")
    status = {check: result["status"] for check, result in found.items()}
    assert status == {"step.context": "passed", "step.used-on-one-replica": "passed", "step.experts": "failed"}
    wrong = {finding["where"] for finding in found["step.experts"]["findings"]}
    assert wrong == {f"rank {rank}, stage 0 block.mixture.router.counts" for rank in range(2)}


@of_this_release
@pytest.mark.slow
def test_a_rank_that_aborts_fails_its_own_step_alone(tmp_path: Path) -> None:
    aborts = "step.fsdp-used-on-one-replica"
    found = results("torch", tmp_path, f"step.ddp,{aborts},step.used-in-one-microbatch")
    status = {check: result["status"] for check, result in found.items()}
    assert status == {"step.ddp": "passed", aborts: "failed", "step.used-in-one-microbatch": "passed"}
    assert "rank 1 died (SIGABRT) at 0B7, in the implementation under test" in found[aborts]["message"]


def test_each_failure_of_torchs_runtime_is_either_fixed_or_remaining() -> None:
    table = TABLE["right_split"]
    left = {check for script in table["left"] for check in BY_SCRIPT[script]}
    left |= {check for checks in table["behind"].values() for check in checks}
    assert sorted(left & set(MENDED)) == []
    assert left | set(MENDED) == {check for checks in BY_SCRIPT.values() for check in checks}
    assert set(table["left"]) >= set(table["behind"])


@of_this_release
@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    [pytest.param(slice(None), marks=pytest.mark.nightly), slice(9, None, 16)],  # of these twelve, one compiles
    ids=["all", "some"],
)
def test_a_correct_split_backward_in_torchs_runtime_has_no_failure(part: slice, tmp_path: Path) -> None:
    chosen = [case.id for case in step_cases("standard")][part]
    found = results("reference-split", tmp_path, ",".join(chosen))
    assert set(found) == set(chosen)
    assert "passed" in {result["status"] for result in found.values()}
    wrong = {check: result["message"] for check, result in found.items() if result["status"] in {"failed", "error"}}
    assert wrong == {}
    reasons = [result["message"] for result in found.values() if result["status"] == "unsupported"]
    known = ("torch's runtime ", "the runtime does not claim ", "torch.compile with inductor does not work here: ")
    assert [one for one in reasons if not one.startswith(known)] == []


def test_each_check_of_the_table_is_one_of_the_profile() -> None:
    known = {case.id for case in step_cases("standard")}
    assert {check for checks in BY_SCRIPT.values() for check in checks} - known == set()


@pytest.mark.parametrize("script", BY_SCRIPT)
def test_each_script_of_the_table_exists(script: str) -> None:
    assert (FOLDER / script).is_file()
