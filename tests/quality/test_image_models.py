"""Models of timm and torchvision by name, small, with random weights: what is right is accused nowhere in them."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable

import pytest
import torch

from gradconform.named_stages.error import StageNotInstalledError
from gradconform.named_stages.named import stages_of
from gradconform.results import Report

Judge = Callable[..., Report]


@pytest.fixture
def library(request: pytest.FixtureRequest) -> str:
    """A library; what needs one that cannot be imported, or was built for another torch, is skipped."""
    name: str = request.param
    try:
        importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 (one that was built for another torch raises what it likes)
        pytest.skip(f"{name} cannot be imported: {error}; pip install 'gradconform[{name}]'")
    return name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "model", "traits"),
    [
        ("timm", "vit_tiny_patch16_224", ""),
        ("timm", "swin_tiny_patch4_window7_224", "rng"),
        ("timm", "convnext_tiny", ""),
        ("torchvision", "vit_b_16", ""),
        ("torchvision", "densenet121", "buffers"),
        ("torchvision", "mobilenet_v2", "buffers"),
    ],
    indirect=["library"],
)
def test_a_right_split_backward_passes_on_every_model(library: str, model: str, traits: str, judge: Judge) -> None:
    report = judge("reference-split", stage=f"{library}:{model}", profile="quick", strict=True)
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.verdict == "passed"
    assert report.summary["passed"] > 30
    assert traits in report.extra[0]


@pytest.mark.parametrize(
    ("library", "model", "most"),
    [
        ("timm", "vit_large_patch16_224", 50_000),  # widths, heads and depths
        ("timm", "resnet50", 700_000),
        ("timm", "mambaout_base", 2_000_000),  # whose builder does not say its class
        ("torchvision", "swin_b", 2_000_000),
        ("torchvision", "resnet152", 9_000_000),  # depths alone
    ],
    indirect=["library"],
)
def test_a_model_is_made_small_through_its_constructor_arguments(library: str, model: str, most: int) -> None:
    (case,) = stages_of(f"{library}:{model}").values()
    module = case.make(dtype=torch.float32, device=torch.device("cpu"), seed=0)
    assert sum(parameter.numel() for parameter in module.parameters()) < most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "model", "whole"),
    [("timm", "vit_tiny_patch16_224", 5_717_416), ("torchvision", "shufflenet_v2_x0_5", 1_366_792)],
    indirect=["library"],
)
def test_size_full_builds_the_model_in_its_full_size(library: str, model: str, whole: int) -> None:
    (case,) = stages_of(f"{library}:{model}?size=full").values()
    module = case.make(dtype=torch.float32, device=torch.device("cpu"), seed=0)
    assert sum(parameter.numel() for parameter in module.parameters()) == whole
    assert case.inputs[0].shape[-1] == 224  # type: ignore[attr-defined] # a recipe of an image


@pytest.mark.parametrize(
    ("library", "asked", "said"),
    [
        ("timm", "resnet81", "timm has no model 'resnet81'; nearest: resnet"),
        ("torchvision", "resnet81", "torchvision has no model 'resnet81'; nearest: resnet"),
        ("timm", "resnet18?size=big", "expected size=small or size=full, and cut=MODULE,… last; got 'size=big'"),
        ("torchvision", "ssdlite320_mobilenet_v3_large", "fails with images of 224, 256, 299 pixels: AssertionError"),
    ],
    indirect=["library"],
)
def test_a_name_that_is_not_an_image_model_is_refused(library: str, asked: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        stages_of(f"{library}:{asked}")


@pytest.mark.parametrize("missing", ["timm", "torchvision", "transformers"])
def test_a_missing_library_is_reported_with_its_extra(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    prefix = {"transformers": "hf"}.get(missing, missing)
    with pytest.raises(StageNotInstalledError, match=re.escape(f"pip install 'gradconform[{missing}]'")) as raised:
        stages_of(f"{prefix}:anything")
    assert raised.value.exit_code == 4
