"""``--operation`` and ``--block``: single operations, and blocks of models, in place of the contract."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline

from gradconform.fixtures.operations.entries import entries
from gradconform.sources.operations import NAMES

Command = Callable[..., Any]


def test_operation_names_and_globs_replace_the_contract(command: Command) -> None:
    done = command("run", "reference-split", "--operation", "linalg.chol*,nn.SiLU", "--profile", "quick", "--list")
    assert (done.code, done.err) == (0, "")
    assert_expected_inline(
        done.out,
        """\
ops.full.linalg.cholesky[cpu-float32]  MUST
ops.split.linalg.cholesky[cpu-float32]  MUST
ops.full.linalg.cholesky_ex[cpu-float32]  MUST
ops.split.linalg.cholesky_ex[cpu-float32]  MUST
ops.full.nn.SiLU[cpu-float32]  MUST
ops.split.nn.SiLU[cpu-float32]  MUST
6 of 6 extra checks beside contract 1.3 would run
""",
    )


def test_if_no_operation_can_be_judged_the_run_is_refused(
    command: Command,
) -> None:
    done = command("run", "reference-split", "--operation", "nn.functional.one_hot")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("gradconform: no selected part can be judged: operations: 0 of 1 operations that ")


def test_the_selected_operations_and_blocks_are_printed_before_any_check(command: Command) -> None:
    done = command("run", "reference-split", "--operation", "linalg.cholesky,nn.functional.one_hot", "--block", "lora")
    assert done.code == 0
    opening = " ".join(done.out.split("checks ")[0].split())
    assert "operations: 1 of 2 operations that torch" in opening
    assert "not tried: nn.functional.one_hot" in opening
    assert "blocks: 1 block at 8 sizes" in opening


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--operation", "linalg.choleski"), "lists no operation 'linalg.choleski'; nearest: "),
        (("--block", "swiglo"), "unknown block 'swiglo'; nearest: swiglu"),
        (("--block", "lora", "--sizes", "larg"), "unknown sizes 'larg' (did you mean large?); expected one of small"),
    ],
)
def test_an_unknown_operation_or_block_is_refused_with_the_nearest_name(
    command: Command, words: tuple[str, ...], told: str
) -> None:
    done = command("run", "torch", *words)
    assert done.code == 2
    assert told in done.err


def test_an_operation_with_variants_is_refused_with_their_names(command: Command) -> None:
    done = command("device", "cpu", "--operation", "max")
    assert (done.code, done.out) == (2, "")
    nearest = "max.binary, max.reduction_no_dim, max.reduction_with_dim"
    assert " ".join(done.err.split()).endswith(f" lists no operation 'max'; nearest: {nearest}")


def test_the_names_that_refuse_at_once_are_those_of_torch() -> None:
    release, *names = NAMES.read_text(encoding="utf-8").splitlines()
    if not torch.__version__.startswith(f"{release.removeprefix('torch ')}."):
        pytest.skip(f"the names are those of {release}")
    assert names == list(entries())


@pytest.mark.slow
def test_a_failure_is_replayed_by_its_id_and_as_a_script(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command("run", "torch", "--operation", "nn.LSTM", "--block", "tied-head", "--json", "report.json")
    assert done.code == 1
    assert "reproduce: gradconform replay ops.split.nn.LSTM torch\n" in done.out
    assert "only with: sample=" in " ".join(done.out.split())
    report = json.loads(Path("report.json").read_text(encoding="utf-8"))
    assert {r["check"].rpartition(".")[0] for r in report["results"] if r["status"] == "failed"} == {
        "ops.split.nn", "blocks.split.tied-head",
    }  # fmt: skip
    for check in ("ops.split.nn.LSTM", "blocks.split.tied-head.tiny"):
        again = command("replay", check, "torch")
        assert again.code == 1
        assert f"{check}: failed" in again.out
        from_report = command("replay", f"report.json#{check}")
        assert "same result as in the report, to the last digit" in from_report.out
        assert command("replay", check, "torch", "--script", "defect.py").code == 0
        script = subprocess.run([sys.executable, "defect.py"], capture_output=True, text=True, check=False)
        assert (script.returncode, "WRONG: " in script.stdout) == (1, True), script.stderr
