"""Stages that torch's tracer cuts a model into: together they are the model, and what is right is accused in none."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform.fixtures.inputs import draw_arguments
from gradconform.fixtures.stages import StageCase
from gradconform.named_stages.named import stages_of
from gradconform.reference.faults import FAULTS
from gradconform.results import Report
from gradconform.trees import as_tuple, tensors

Judge = Callable[..., Report]
CPU = torch.device("cpu")

MODEL = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.norm, self.up, self.down = nn.BatchNorm1d(6), nn.Linear(6, hidden), nn.Linear(hidden, 6)

    def forward(self, x, scale):
        return x + self.down(torch.relu(self.up(self.norm(x).to(x.dtype)))) * scale

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block(hidden) for hidden in (12, 20, 12))
        self.unused, self.head = nn.Linear(2, 2), nn.Linear(6, 4)

    def forward(self, x):
        scale = torch.full((1,), 0.5, dtype=x.dtype, device=x.device)
        skipped = x.sin()
        for layer in self.layers:
            x = layer(x, scale)
        return self.head(x + skipped), None

class Branches(Model):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)

def model():
    return Model(), torch.zeros(5, 6)

def branches():
    return Branches(), torch.zeros(5, 6)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file with models."""
    (tmp_path / "models.py").write_text(MODEL, encoding="utf-8")
    return str(tmp_path / "models.py")


def arguments(case: StageCase, dtype: torch.dtype) -> tuple[Any, ...]:
    return draw_arguments(case.inputs, seed=0, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_stages_cut_from_a_model_compute_the_same_as_the_model(file: str, dtype: torch.dtype) -> None:
    (whole,) = stages_of(f"{file}:model").values()
    cut = stages_of(f"{file}:model?cut=layers.1,head")
    assert list(cut) == ["model-0", "model-1", "model-2"]
    made = whole.make(dtype=dtype, device=CPU, seed=0)
    stages = [case.make(dtype=dtype, device=CPU, seed=0) for case in cut.values()]
    expected = dict(made.named_parameters())
    for stage in stages:
        stage.load_state_dict(made.state_dict(), strict=False)
        assert {name: one.shape for name, one in stage.named_parameters()}.items() <= {
            name: one.shape for name, one in expected.items()
        }.items()
    given = arguments(whole, dtype)
    (right,), found = tensors(made(*given)), given
    for stage in stages:
        found = as_tuple(stage(*found))
    assert torch.equal(found[0], right)
    right.sum().backward()
    found[0].sum().backward()
    for stage in stages:
        for name, one in stage.named_parameters():
            assert torch.equal(one.grad, expected[name].grad)  # type: ignore[arg-type] # of both there is one


def test_a_right_split_passes_on_every_cut_stage_and_a_wrong_one_fails(file: str, judge: Judge) -> None:
    stage = f"{file}:model?cut=layers.1"
    report = judge("reference-split", stage=stage, profile="quick", strict=True)
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.summary["passed"] > 70
    assert [told.partition(", ")[0] for told in report.extra] == [f"model-{n}: {stage} {n}" for n in (0, 1)]
    wrong = judge(FAULTS["biases"].make(), stage=stage, checks="*.full.gradients", diagnose=False)
    assert [result.status for result in wrong] == ["failed", "failed"]


@pytest.mark.parametrize(
    ("cut", "said"),
    [
        ("model?cut=layers.9", "models.py:model has no module 'layers.9'; nearest: layers.2"),
        ("model?cut=up", "has no module 'up'; it may be layers.0.up, layers.1.up, layers.2.up"),
        ("model?cut=layers.1,unused", "torch's tracer found 2 of "),
        ("branches?cut=layers.1", "torch's tracer refuses "),
    ],
)
def test_an_invalid_cut_is_refused_before_anything_runs(
    file: str, cut: str, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match=re.escape(said)) as raised:
        stages_of(f"{file}:{cut}")
    assert capfd.readouterr() == ("", "")
    if "branches" in cut:
        assert "Could not guard on data-dependent expression" in str(raised.value)


def test_constants_of_the_trace_are_moved_to_the_device(file: str) -> None:
    case = next(iter(stages_of(f"{file}:model?cut=layers.1").values()))
    meta = torch.device("meta")
    found = case.make(dtype=torch.float32, device=meta, seed=0)(
        *(one.to(meta) for one in arguments(case, torch.float32))
    )
    assert {one.device for one in tensors(found)} == {meta}


@pytest.mark.parametrize(
    ("name", "path", "traits"),
    [
        ("LlamaForCausalLM", "layers.1", "fixed_input, integer_input, multi_input"),
        ("ViTForImageClassification", "layers.1", "multi_input"),
        ("T5ForConditionalGeneration", "decoder.block.1", "fixed_input, integer_input, multi_input, rng"),
    ],
)
def test_a_transformers_model_is_cut_if_the_tracer_accepts_it(name: str, path: str, traits: str, judge: Judge) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'gradconform[transformers]'")
    checks = ("*.split.gradients", "*.full.gradients")
    report = judge("reference-split", stage=f"hf:{name}?cut={path}", checks=checks)
    assert [result.status for result in report] == ["passed"] * 4
    assert traits in report.extra[1]


def test_a_mixture_of_experts_is_refused_with_the_error_of_the_tracer() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'gradconform[transformers]'")
    with pytest.raises(ValueError, match="torch's tracer refuses hf:MixtralConfig: GuardOnDataDependentSymNode: Could"):
        stages_of("hf:MixtralConfig?cut=layers.1")
