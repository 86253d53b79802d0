"""Right sharded stages pass and wrong ones fail with their cause, each in a whole run on its own ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gradconform
from gradconform.exits import EXIT_USAGE, RunRefusedError, RunStoppedError
from gradconform.reference.sharded import faults
from gradconform.reference.sharded.faults import FAULTS
from gradconform.results import Report
from gradconform.user_input.values import SelectionError
from tests.daily_part import part_of_today

RIGHT = (
    "column_row:ColumnRowMLP", "vocabulary:VocabularyLoss", "context:ContextAttention", "experts:RoutedExperts",
    "torch_styles:TorchStyles", "token_mean:TokenMean", "fused:FusedHeads", "overlapped:OverlappedMLP",
    "ring:RingAttention", "ulysses:UlyssesAttention", "capacity:CapacityExperts", "hooked:HookedReplicas",
)  # fmt: skip


#: The variable that names another part of the faults than today's, such as 3/11, and the number of parts.
VARIABLE, PARTS = "GRADCONFORM_SHARDED_FAULTS", 11


def judged(stage: str, **options: Any) -> Report:
    return gradconform.check_sharded_stage(f"gradconform.reference.sharded.{stage}", **options)


def wrong(report: Report) -> list[str]:
    """Return what did not pass, with its message."""
    return [f"{result.check}: {result.status} {result.message}" for result in report if result.status != "passed"]


def test_a_right_stage_passes_each_kind_of_check() -> None:
    report = judged("column_row:ColumnRowMLP", checks="*.plain")
    assert wrong(report) == []
    kinds = {result.check.split(".")[1] for result in report}
    assert kinds == {"program", "outputs", "input-gradients", "gradients", "copies", "steps", "norm"}
    compared = {result.check.split(".")[1] for result in report if result.error_ratio is not None}
    assert compared == kinds - {"program"}


@pytest.mark.slow
@pytest.mark.parametrize("stage", RIGHT)
def test_a_right_stage_passes(stage: str) -> None:
    assert wrong(judged(stage)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("stage", RIGHT)
def test_a_right_stage_passes_in_every_dtype(stage: str, dtype: str) -> None:
    assert wrong(judged(stage, dtype=dtype)) == []


@pytest.mark.parametrize(
    "stage",
    [pytest.param(one, marks=pytest.mark.nightly if place else pytest.mark.slow) for place, one in enumerate(RIGHT)],
)
def test_a_right_stage_passes_every_pair_on_every_mesh(stage: str) -> None:
    report = judged(stage, profile="standard")
    assert wrong(report) == []
    assert any("pairs" in result.check for result in report)


@pytest.mark.slow
@pytest.mark.parametrize("backward", ["reference-split", "torch", "torch-stage"])
def test_a_target_runs_the_backward_of_a_sharded_stage(backward: str) -> None:
    assert wrong(judged("column_row:ColumnRowMLP", backward=backward)) == []


@pytest.mark.slow
def test_a_target_that_takes_all_ranks_for_replicas_is_refused_and_not_accused() -> None:
    pytest.importorskip("deepspeed")
    report = judged("column_row:ColumnRowMLP", backward="deepspeed", checks="*.plain")
    assert {(result.status, "takes all 2 ranks for replicas" in result.message) for result in report} == {
        ("unsupported", True)
    }


@pytest.mark.nightly
@pytest.mark.parametrize("stage", RIGHT[-4:])
def test_a_stage_with_its_own_backward_or_hooks_passes_a_split_backward(stage: str) -> None:
    assert wrong(judged(stage, backward="reference-split")) == []


def assert_caught(name: str) -> None:
    """Require that a run of profile quick finds a fault, and names its cause."""
    kind, cause = FAULTS[name]
    report = judged(f"faults:{name}")
    failed = [result for result in report if result.status == "failed" and result.check.split(".")[1] == kind]
    assert failed, [result.check for result in report if result.status != "passed"]
    named = {finding["cause"]["kind"] for result in failed for finding in result.findings if finding["cause"]}
    assert cause in named or not cause, named
    assert report.verdict == "failed"


@pytest.mark.parametrize("name", ["SequenceGradientsNotSummed", "NormCountsCopies"])
def test_a_fault_is_found_with_its_cause(name: str) -> None:
    assert_caught(name)


@pytest.mark.slow
def test_the_faults_of_a_part_are_found_with_their_causes(record_property: Callable[..., None]) -> None:
    shard = part_of_today(PARTS, VARIABLE)
    record_property(VARIABLE, str(shard))
    for name in sorted(FAULTS)[shard.index - 1 :: shard.count]:
        assert_caught(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_fault_is_found_with_its_cause(name: str) -> None:
    assert_caught(name)


ELSEWHERE = """
import torch
from gradconform.reference.sharded.column_row import ColumnRowMLP

class Stage(ColumnRowMLP):
    def finish(self, module):
        super().finish(module)
        module.buffer = {name: one.grad.clone() for name, one in module.named_parameters() if one.grad is not None}

    def grad_norm(self, module):
        kept = {name: one.grad for name, one in module.named_parameters()}
        for name, one in module.named_parameters():
            one.grad = module.buffer.get(name)
        norm = super().grad_norm(module)
        for name, one in module.named_parameters():
            one.grad = kept[name]
        return norm
"""


def test_a_norm_of_gradients_in_a_buffer_is_not_asked_for_single_parameters(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE)
    report = gradconform.check_sharded_stage(f"{tmp_path / 'elsewhere.py'}:Stage", checks="sharded.norm.*")
    assert wrong(report) == []
    assert len(list(report)) > 1


def test_every_fault_says_what_it_does_wrong() -> None:
    assert len(FAULTS) >= 40
    assert [name for name in FAULTS if not getattr(faults, name).__doc__] == []


BROKEN = """
import os, time
import torch, torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard
from gradconform.reference.sharded.column_row import ColumnRowMLP, ShardedMLP

class Part(ShardedMLP):
    def enter(self, value):
        if self.group.rank() == 1:
            {does}
        return super().enter(value)

class Stage(ColumnRowMLP):
    module = Part
    {has}
"""


def broken(folder: Path, *, does: str = "pass", has: str = "pass") -> str:
    path = folder / "broken.py"
    path.write_text(BROKEN.format(does=does, has=has))
    return f"{path}:Stage"


ENDS = {
    "raises": (
        "raise ValueError('no such shard')",
        "rank 1 raised ValueError: no such shard at broken.py:10, in enter",
    ),
    "dies": ("os.kill(os.getpid(), 9)", "rank 1 died (SIGKILL)"),
    "hangs": ("time.sleep(1000)", "rank 1 was at broken.py:10, in enter"),
    "one collective less": ("return value", "the ranks call other collectives: call 2 over tp differs"),
    "another collective": (
        "dist.all_gather([torch.empty_like(value) for _ in range(2)], value.contiguous(), group=self.group)",
        "rank 1 calls all_gather over tp at broken.py:10, in enter",
    ),
}


@pytest.mark.parametrize("way", ["raises", *(pytest.param(way, marks=pytest.mark.slow) for way in [*ENDS][1:])])
def test_a_rank_that_leaves_its_peers_is_named_with_its_line(way: str, tmp_path: Path) -> None:
    does, said = ENDS[way]
    report = gradconform.check_sharded_stage(broken(tmp_path, does=does), checks="*.plain", timeout=5)
    found = {result.check: result for result in report}
    program = found.pop("sharded.program.plain")
    assert (program.status, said in program.message) == ("failed", True), program.message
    if way in {"raises", "dies", "hangs"}:
        assert {result.status for result in found.values()} == {"not_run"}
        assert "regions.py:" in program.message  # where the other rank waits
    assert report.verdict == "failed"


MISTAKES = {
    "no placement": (
        "placements = {n: p for n, p in ColumnRowMLP.placements.items() if n != 'up.bias'}",
        "parameter 'up.bias' has no placement",
    ),
    "another output": (
        "output_placements = property(lambda self: (Shard(1),), lambda self, value: None)",
        "output 0 has the shape (2, 8, 8) on rank 0, but its part of the whole (2, 8, 8) has (2, 4, 8)",
    ),
    "another output on one rank": (
        "output_placements = property(lambda self: (lambda w, at, _: w[: 2 - at['tp']],), lambda self, value: None)",
        "output 0 has the shape (2, 8, 8) on rank 1, but its part of the whole (2, 8, 8) has (1, 8, 8)",
    ),
    "a wrong number": (
        "arg_grad_placements = (Replicate(), Replicate())",
        "arg_grad_placements has 2 entries; expected one for each of 1 arguments",
    ),
}


@pytest.mark.parametrize(
    "mistake", ["no placement", *(pytest.param(one, marks=pytest.mark.slow) for one in [*MISTAKES][1:])]
)
def test_a_wrong_description_is_wrong_input_and_no_failure(mistake: str, tmp_path: Path) -> None:
    has, said = MISTAKES[mistake]
    with pytest.raises(RunStoppedError) as raised:
        gradconform.check_sharded_stage(broken(tmp_path, has=has), checks="*.plain")
    assert said in str(raised.value)
    assert raised.value.exit_code == EXIT_USAGE


REFUSING = """
from gradconform.adapter import UnsupportedError
from gradconform.reference.sharded.column_row import ColumnRowMLP

class Stage(ColumnRowMLP):
    options = {"fused": (False, True)}

    def __init__(self, fused=False):
        super().__init__()
        self.fused = fused

    def sharded(self, mesh):
        if self.fused and mesh.get_rank() == 1:
            raise UnsupportedError("no fused kernel on this machine")
        return super().sharded(mesh)
"""


def test_a_row_that_the_stage_refuses_on_one_rank_is_unsupported_and_the_others_run(tmp_path: Path) -> None:
    (tmp_path / "refusing.py").write_text(REFUSING)
    report = gradconform.check_sharded_stage(f"{tmp_path / 'refusing.py'}:Stage", checks=("*.fused", "*.plain"))
    refused = [result for result in report if result.check.endswith(".fused")]
    assert {(result.status, result.message) for result in refused} == {
        ("unsupported", "refused: no fused kernel on this machine")
    }
    assert {result.status for result in report if result.check.endswith(".plain")} == {"passed"}


def test_a_stage_that_refuses_its_usual_options_is_wrong_input(tmp_path: Path) -> None:
    (tmp_path / "refusing.py").write_text(
        REFUSING.replace("def sharded(self, mesh)", "def whole(self)")
        .replace("self.fused and mesh.get_rank() == 1", "not self.fused")
        .replace("sharded(mesh)", "whole()")
    )
    with pytest.raises(RunRefusedError, match="refuses its usual options: no fused kernel"):
        gradconform.check_sharded_stage(f"{tmp_path / 'refusing.py'}:Stage")


LENGTHS = """
import torch
from torch import nn
from gradconform.reference.sharded.column_row import ColumnRowMLP, ShardedMLP

class Stage(ColumnRowMLP):
    def args(self, generator):
        rows = int(torch.randint(1, 6, (), generator=generator))
        return (torch.randn(rows, 8, 8, generator=generator),)

class Keeping(ShardedMLP):
    rows = None

    def forward(self, value):
        self.rows = self.rows or len(value)
        found = super().forward(value)
        return found if self.rows == len(value) else found * 2.0

class Wrong(Stage):
    module = Keeping
"""


def test_micro_batches_may_have_different_shapes(tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text(LENGTHS)
    assert wrong(gradconform.check_sharded_stage(f"{tmp_path / 'lengths.py'}:Stage")) == []
    report = gradconform.check_sharded_stage(f"{tmp_path / 'lengths.py'}:Wrong", checks="*.gradients.mixed*")
    assert any("three" in one for one in wrong(report)), wrong(report)


def test_a_class_without_a_place_in_a_module_is_refused() -> None:
    class Inner:
        pass

    with pytest.raises(SelectionError, match="a class at the top of a module"):
        gradconform.check_sharded_stage(Inner)
