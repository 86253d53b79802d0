"""Whole pipelines on several processes: right ones, broken ones, and what they say."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform.cli import main
from gradconform.exits import EXIT_INCOMPLETE
from gradconform.pipeline.cases import SCENARIOS, cases_of

SPLIT = ("InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")
SCRIPTS = Path(__file__).with_name("torch_2_13")
#: The release from which on what a script shows is mended.
MENDED = {"batch_norm_counts_inference": (2, 15)}

BROKEN = """
from gradconform.reference.split import stage_backward, stage_backward_input
from gradconform.reference import split

calls = 0

def stage_backward_weight(weights, param_groups, retain_graph=False):
    "Drop the third W."
    global calls
    calls += 1
    if calls % 8 != 3:
        split.stage_backward_weight(weights, param_groups, retain_graph)
"""


def pipeline(*arguments: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run the command; return the process and its report."""
    path = folder / "report.json"
    command = [sys.executable, "-m", "gradconform", "pipeline", *arguments, "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False, env=environment())
    return done, json.loads(path.read_text()) if path.is_file() else None


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def statuses(report: dict[str, Any]) -> dict[str, str]:
    return {result["check"]: result["status"] for result in report["results"]}


@pytest.mark.slow
def test_the_reference_split_passes_all_seven_schedules_of_torch(tmp_path: Path) -> None:
    done, report = pipeline("reference-split", "--schedule", "all", "--ranks", "2", folder=tmp_path)
    found = statuses(report)
    assert len(found) == 7 * len(SCENARIOS)
    # torch's runtime itself raises there: torch_2_13/eval_of_v_schedule.py.
    refused = {"pipeline.zbv-zero-bubble.eval-then-train", "pipeline.dual-pipe-v.eval-then-train"}
    assert {check for check, status in found.items() if status != "passed"} == refused, done.stdout
    assert {found[check] for check in refused} == {"unsupported"}
    assert done.returncode == 0


@pytest.mark.slow
def test_torch_fails_only_with_a_frozen_first_stage(tmp_path: Path) -> None:
    done, report = pipeline("torch", "--schedule", ",".join(SPLIT), "--ranks", "2", folder=tmp_path)
    failed = {check for check, status in statuses(report).items() if status == "failed"}
    assert failed == {  # torch_2_13/frozen_first_stage.py
        "pipeline.interleaved-zero-bubble.frozen-first",
        "pipeline.zbv-zero-bubble.frozen-first",
        "pipeline.dual-pipe-v.frozen-first",
    }
    assert done.returncode == 1


@pytest.mark.slow
def test_with_the_right_split_in_torchs_stages_a_frozen_first_stage_passes(tmp_path: Path) -> None:
    arguments = ("torch", "--schedule", "ZBVZeroBubble", "--checks", "*.frozen-first", "--ranks", "2")
    lost, of_torch = pipeline(*arguments, folder=tmp_path)
    done, report = pipeline(*arguments, "--fixed", folder=tmp_path)
    check = "pipeline.zbv-zero-bubble.frozen-first"
    assert (statuses(of_torch), statuses(report)) == ({check: "failed"}, {check: "passed"}), done.stdout
    assert (lost.returncode, done.returncode) == (1, EXIT_INCOMPLETE)  # some checks alone
    assert [one["target"]["name"] for one in (of_torch, report)] == ["torch", "torch with the right split"]
    assert [one["options"]["fixed"] for one in (of_torch, report)] == [False, True]


@pytest.mark.nightly
@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.py")), ids=lambda script: script.stem)
def test_each_defect_is_confirmed_by_a_script_that_uses_only_torch(script: Path) -> None:
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert "gradconform" not in script.read_text()
    mended = tuple(map(int, torch.__version__.split(".")[:2])) >= MENDED.get(script.stem, (sys.maxsize,))
    assert (done.returncode, bool(done.stdout)) == (0 if mended else 1, True), done.stderr


@pytest.mark.slow
def test_a_dropped_weight_gradient_is_found_in_each_split_schedule(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    done, report = pipeline(
        "broken.py", "--schedule", ",".join(SPLIT), "--checks", "*.two-steps", "--ranks", "2", folder=tmp_path
    )
    assert set(statuses(report).values()) == {"failed"}
    assert len(report["results"]) == len(SPLIT)
    assert all(result["kind"] == "mismatch" for result in report["results"]), done.stdout


@pytest.mark.slow
def test_a_schedule_file_runs_on_torchs_runtime_and_needs_no_split_if_it_has_none(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1\n")
    (tmp_path / "full.py").write_text("from gradconform.reference.split import stage_backward\n")
    checks = ("--checks", "*.two-steps,*.scaled")
    done, report = pipeline(
        "full.py", "--schedule", "mine.csv,InterleavedZeroBubble", "--ranks", "2", *checks, folder=tmp_path
    )
    reason = "the schedule needs stage_backward_input and stage_backward_weight, which the target does not have"
    assert statuses(report) == {
        "pipeline.mine.two-steps": "passed",
        "pipeline.mine.scaled": "passed",
        "pipeline.interleaved-zero-bubble.two-steps": "unsupported",
        "pipeline.interleaved-zero-bubble.scaled": "unsupported",
    }
    assert reason in done.stdout.replace("\n       ", " ")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("torch", "--schedule", "1F2B"), "unknown schedule '1F2B'; expected one of GPipe, 1F1B"),
        (("torch", "--schedule", "none.csv"), "cannot read the schedule 'none.csv'"),
        (("torch", "--schedule", "1F1B", "--stages-per-rank", "2"), "expected one stage per rank, got 2"),
        (("torch", "--schedule", "1F1B", "--ranks", "3", "--nnodes", "2"), "cannot be divided evenly"),
        (("torch", "--schedule", "1F1B", "--nnodes", "2"), "requires --rdzv-endpoint HOST:PORT"),
        (
            ("torch", "--nnodes", "2", "--rdzv-endpoint", "node0"),
            "HOST:PORT, a machine and a free port on it",
        ),
        (("torch", "--nnodes", "3"), "training steps on 2 ranks cannot be divided evenly by --nnodes 3"),
        (("torch", "--schedule", "1F1B", "--checks", "*.frozen"), "nearest: pipeline.1f1b.frozen-first"),
        (("reference-split", "--fixed"), "--fixed requires target torch, got 'reference-split'"),
        (("autograd", "--schedule", "1F1B"), "a pipeline requires torch's three functions"),
        (("no.such.module", "--schedule", "1F1B"), "no.such.module"),
    ],
)
def test_an_invalid_pipeline_is_refused_before_any_process_starts(
    arguments: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["pipeline", *arguments])
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert complaint in " ".join(told.err.split())


def test_a_case_has_the_actions_of_its_schedule_and_an_id_from_its_name() -> None:
    cases = cases_of(["ZBVZeroBubble", "1f1b"], ranks=2)
    assert [case.id for case in cases[:2]] == [
        "pipeline.zbv-zero-bubble.two-steps",
        "pipeline.zbv-zero-bubble.zero-grad",
    ]
    assert cases[-1].id == "pipeline.1f1b.single-rank"
    assert len(cases[-1].rows) == 1
    assert cases[-2].size == "1F1B (2 ranks, 2 stages, 8 micro-batches)"
