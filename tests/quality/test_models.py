"""Models of transformers by name, small, with random weights: what is right is accused nowhere in them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from gradconform.named_stages.named import stages_of
from gradconform.results import Report
from gradconform.target.lookup import TargetError

Judge = Callable[..., Report]

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'gradconform[transformers]'")

#: Like Llama, a mixture of experts, one that sees, an encoder and a decoder.
MODELS = ("LlamaForCausalLM", "MixtralForCausalLM", "ViTForImageClassification", "T5ForConditionalGeneration")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_right_split_backward_passes_on_every_model(name: str, judge: Judge) -> None:
    report = judge("reference-split", stage=f"hf:{name}", profile="quick", strict=True)
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.verdict == "passed"
    assert report.summary["passed"] > 60
    whole, layers = report.extra
    assert f"hf:{name}, " in whole
    assert f"hf:{name} layers, " in layers


def test_layers_that_accept_their_own_output_run_in_schedules(judge: Judge) -> None:
    schedules = ("stage.*-layers.schedule.gradients.zbv-*", "stage.*-layers.schedule.gradients.1f1b-*")
    report = judge("reference-split", stage="hf:LlamaConfig", checks=schedules)
    assert report.summary["passed"] == report.planned == 4


@pytest.mark.parametrize("name", ["Qwen3", "Gemma3", "GptOss", "Falcon", "DeepseekV3", "Bart"])
def test_configurations_with_dependent_sizes_are_made_small(name: str) -> None:
    whole, *_ = stages_of(f"hf:{name}ForCausalLM").values()
    module = whole.make(dtype=torch.float32, device=torch.device("cpu"), seed=0)
    assert sum(parameter.numel() for parameter in module.parameters()) < 150_000


def test_a_small_model_keeps_each_kind_of_layer() -> None:
    whole, *_ = stages_of("hf:Gemma3ForCausalLM").values()
    model = vars(whole.build())["model_itself"]
    assert model.config.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]


def test_a_submodule_can_be_selected_from_the_model_or_from_its_layers(judge: Judge) -> None:
    whole = judge("reference-split", stage="hf:LlamaConfig#model.layers.1.mlp", checks="*.split.gradients")
    layers = judge("reference-split", stage="hf:LlamaConfig#layers.1.mlp", checks="*.split.gradients")
    assert whole.summary["passed"] == layers.summary["passed"] == 1
    assert "hf:LlamaConfig#model.layers.1.mlp, " in whole.extra[0]


def test_the_auxiliary_loss_of_a_mixture_of_experts_is_an_output(judge: Judge) -> None:
    report = judge("reference-split", stage="hf:MixtralConfig", checks="*.split.gradients")
    assert "multi_output" in report.extra[0]
    assert report.summary["passed"] == 2


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "hf:LlamaForCausalLm",
            "transformers has no model or configuration 'LlamaForCausalLm'; nearest: LlamaForCausalLM",
        ),
        ("hf:LlamaConfig?size=big", "expected size=small or size=full, and cut=MODULE,… last; got 'size=big'"),
        ("hf:nowhere.json", "there is no file 'nowhere.json'"),
    ],
)
def test_an_unknown_model_is_refused(name: str, said: str, judge: Judge) -> None:
    with pytest.raises((ValueError, TargetError), match=re.escape(said.partition(";")[0])):
        judge("torch", stage=name)
