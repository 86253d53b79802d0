"""A wrong gradient in the middle of a user's stage is localised to the module in which the backward departs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages import ZOO, StageCase
from gradconform.reference.faults.alterations import each_input_grad, param_grads, target, with_session
from gradconform.results import Report
from gradconform.target.functions import FunctionsSession

Judge = Callable[..., Report]
CHECKS = ("stage.*.full.gradients", "stage.*.split.gradients")


class Block(nn.Module):
    """Two layers, of which nobody else has the width."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, inner), nn.Linear(inner, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Three blocks, each a little wider, the middle one ``twice`` over where that is asked for."""

    def __init__(self, *, twice: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(7), Block(8), Block(9)])
        self.twice = twice

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        first, middle, last = self.layers
        x = middle(first(x))
        return last(middle(x) if self.twice else x), None


def case(*, twice: bool = False) -> StageCase:
    return StageCase("model", "a model of ours", lambda: Model(twice=twice), (Normal((3, 6)),), own_values=True)


def scaled(shape: tuple[int, ...], by: float) -> Any:
    """Return a backward that is wrong in the parameters of one shape."""
    return target(param_grads(lambda parameter, grad, _: grad * by if tuple(parameter.shape) == shape else grad))


def hooked(path: str) -> Any:
    """Return a backward that doubles the gradient of what one module is given."""

    class Session(FunctionsSession):
        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            def double(_: nn.Module, given: tuple[Any, ...]) -> None:
                given[0].register_hook(lambda grad: grad * 2)

            handle = self._stage.get_submodule(path).register_forward_pre_hook(double)
            try:
                return super().forward(mb, args, target)
            finally:
                handle.remove()

    return with_session(Session)


def departs(report: Report) -> set[str | None]:
    findings = [finding for result in report for finding in result.findings]
    return {(finding["needs"] or {}).get("departs") for finding in findings}


@pytest.mark.parametrize("twice", [False, True])
def test_a_wrong_parameter_gradient_is_located_in_its_module(judge: Judge, twice: bool) -> None:  # noqa: FBT001 (a parameter)
    report = judge(scaled((8, 6), 1.5), stage=case(twice=twice), checks=CHECKS)
    assert [result.status for result in report] == ["failed", "failed"]
    assert departs(report) == {"layers.1.up (right at its output and its input, wrong in its weight)"}
    assert "departs=layers.1.up (right at its output" in report.results[0].message


def test_a_wrong_inner_gradient_is_located_in_the_module_that_makes_it_wrong(judge: Judge) -> None:
    report = judge(hooked("layers.1.down"), stage=case(), checks=CHECKS)
    assert [result.status for result in report] == ["failed", "failed"]
    assert departs(report) == {"layers.1.down (right at its output, wrong at its input)"}


def test_a_failure_without_a_wrong_boundary_gradient_names_no_module(judge: Judge) -> None:
    everything = target(param_grads(lambda _, grad, __: grad * 2))
    report = judge(
        everything, stage=StageCase("one", "one layer", lambda: nn.Linear(3, 2), (Normal((4, 3)),)), checks=CHECKS
    )
    assert departs(report) == {None}


def test_a_right_backward_passes_and_names_no_wrong_module(judge: Judge) -> None:
    report = judge("reference-split", stage=case(twice=True), checks=CHECKS)
    assert [result.status for result in report] == ["passed", "passed"]


class Twice(FunctionsSession):
    """Runs each forward once more before its backward, where the gradient of a layer's input is doubled."""

    def backward(self, mb: int, output_grads: Any = None) -> Any:
        self._stage(torch.zeros(3, 6))
        return super().backward(mb, output_grads)

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        def double(_: nn.Module, given: tuple[Any, ...]) -> None:
            if given[0].requires_grad:
                given[0].register_hook(lambda grad: grad * 2)

        handle = self._stage.get_submodule("layers.1.down").register_forward_pre_hook(double)
        try:
            return super().forward(mb, args, target)
        finally:
            handle.remove()


def test_if_forwards_run_more_often_than_in_plain_autograd_no_module_is_named(judge: Judge) -> None:
    report = judge(with_session(Twice), stage=case(), checks="stage.*.full.gradients")
    assert [result.status for result in report] == ["failed"]
    assert departs(report) == {None}


def test_a_module_with_a_wrong_parameter_is_not_named_for_other_gradients(judge: Judge) -> None:
    returned = each_input_grad(lambda _, grad: grad / 2)
    both = target(param_grads(lambda one, grad, _: grad * 1.5 if tuple(one.shape) == (8, 6) else grad, returned))
    report = judge(both, stage=case(), checks="stage.*.full.gradients")
    (result,) = report
    told = {finding["where"]: (finding["needs"] or {}).get("departs") for finding in result.findings}
    assert told == {
        "input 0": None,
        "layers.1.up.weight": "layers.1.up (right at its output and its input, wrong in its weight)",
    }


def test_for_torchs_split_only_the_module_of_a_wrong_gradient_is_named(judge: Judge) -> None:
    report = judge("torch", stage=[ZOO["penalty-output"], ZOO["merged-paths"], ZOO["dict-output"]], checks=CHECKS)
    for result in report:
        for finding in result.findings:
            path = (finding["needs"] or {}).get("departs", finding["where"])
            assert finding["where"].startswith(path.partition(" (")[0])


@pytest.mark.parametrize(
    ("name", "stage", "path"),
    [
        ("LlamaForCausalLM", "llama-for-causal-lm", "model.layers.1.mlp.down_proj"),
        ("MixtralForCausalLM", "mixtral-for-causal-lm", "model.layers.1.self_attn.o_proj"),
        ("ViTForImageClassification", "vi-tfor-image-classification", "vit.layers.1.mlp.activation_fn"),
        (
            "T5ForConditionalGeneration",
            "t5-for-conditional-generation",
            "decoder.block.1.layer.2.DenseReluDense.dropout",
        ),
    ],
)
def test_a_fault_in_the_middle_of_a_named_model_is_located(name: str, stage: str, path: str, judge: Judge) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'gradconform[transformers]'")
    # What is given to the next module is what this one puts out, where nothing is between them.
    given_to = {"activation_fn": "fc2", "dropout": "wo"}
    owner, _, last = path.rpartition(".")
    report = judge(
        hooked(f"{owner}.{given_to.get(last, last)}"), stage=f"hf:{name}", checks=f"stage.{stage}.full.gradients"
    )
    assert departs(report) == {f"{path} (right at its output, wrong at its input)"}
