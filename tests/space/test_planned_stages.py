"""Planned stages: their traits are those that plain autograd shows, and their digests those of their own parts."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from gradconform import contract
from gradconform.contract.freezing import stage_digest
from gradconform.fixtures.inputs import HALF, Normal, SharesMemory, draw_arguments, place_arguments, scale_of
from gradconform.fixtures.planned_stages import Plan, plan_of, planned_case
from gradconform.fixtures.planned_stages.layers import GRADED, LAYERS, Gain
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

CPU = torch.device("cpu")
CASES = {
    case.name: case
    for check in contract.checks_of().values()
    if check.area == "space"
    for trial in check.trials
    for case in trial.stages
}


def test_the_name_of_a_plan_lists_its_non_default_values() -> None:
    assert planned_case(Plan()).name == "planned"
    assert planned_case(Plan(layers="tied by memory", gain="wide")).name == "planned,layers=tied-by-memory,gain=wide"
    assert plan_of(planned_case(Plan(size="0"))) == Plan(size="0")


def test_each_stage_has_a_different_digest() -> None:
    assert len({stage_digest(case) for case in CASES.values()}) == len(CASES)


def test_parameters_that_share_memory_also_share_it_in_copies() -> None:
    module = planned_case(Plan(layers="tied by memory")).make(dtype=torch.float32, device=CPU, seed=1)
    for one in (module, copy.deepcopy(module)):
        twin, bias = one.get_parameter("layers.twin"), one.get_parameter("layers.linear.bias")
        assert twin is not bias
        assert twin.data_ptr() == bias.data_ptr()


@pytest.mark.parametrize(
    ("gain", "dtypes"),
    [
        ("", {one: one for one in HALF}),
        ("wide", {torch.float16: torch.float32, torch.bfloat16: torch.float32}),
        ("float64", dict.fromkeys(HALF, torch.float64)),
        ("narrow", HALF),
        ("graded", {one: one for one in HALF}),
    ],
)
def test_a_gain_can_have_another_dtype(gain: Gain, dtypes: dict[torch.dtype, torch.dtype]) -> None:
    for dtype in HALF:
        module = planned_case(Plan(gain=gain)).make(dtype=dtype, device=CPU, seed=1)
        assert {name: p.dtype for name, p in module.named_parameters()} == {
            "layers.gain": dtypes.get(dtype, dtype),
            "layers.linear.weight": dtype,
            "layers.linear.bias": dtype,
        }


@pytest.mark.skipif(not hasattr(torch.ones(1), "grad_dtype"), reason="this torch has no grad_dtype")
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_the_gradient_of_a_graded_gain_has_another_dtype(dtype: torch.dtype, layers: str) -> None:
    module = planned_case(Plan(gain="graded", layers=layers)).make(dtype=dtype, device=CPU, seed=1)
    module(torch.ones(3, 5, dtype=dtype)).sum().backward()
    grads = {name: p.grad.dtype for name, p in module.named_parameters() if p.grad is not None}
    assert grads.pop("layers.gain") == GRADED[dtype] != dtype
    assert set(grads.values()) == {dtype}


def test_a_weight_is_transposed_in_memory_and_in_copies() -> None:
    module = planned_case(Plan(transposed=True)).make(dtype=torch.bfloat16, device=CPU, seed=1)
    for one in (module, copy.deepcopy(module)):
        weight = one.get_parameter("layers.linear.weight")
        assert (weight.shape, weight.stride()) == ((7, 5), (1, 7))


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset", "expanded"])
def test_arguments_have_the_memory_layout_of_the_plan(layout: str) -> None:
    case = planned_case(Plan(entry="unused", arguments=layout, rows=17))
    drawn = draw_arguments(case.inputs, seed=1, dtype=torch.float32)
    for one in place_arguments(case.inputs, drawn, torch.nn.Module(), CPU):
        assert one.shape == (17, 5)
        assert one.is_leaf
        seen = {
            "transposed": one.stride() == (1, 17),
            "strided": one.stride() == (10, 2),
            "offset": one.storage_offset() == 1,
            "expanded": one.stride() == (0, 0),
        }
        assert seen == {name: name == layout for name in seen}


def test_every_second_uneven_value_is_small() -> None:
    (drawn,) = draw_arguments((Normal((50, 2), values="uneven"),), seed=1, dtype=torch.float32)
    assert drawn is not None
    assert float(drawn[:, 1].abs().max()) < 4 * 2.0**-12 < float(drawn[:, 0].abs().median())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_scale_of_values_matches_its_name(dtype: torch.dtype) -> None:
    limits = torch.finfo(dtype)
    assert scale_of("usual", dtype) == 1.0
    assert scale_of("zero", dtype) == 0.0
    assert scale_of("subnormal", dtype) < limits.smallest_normal < scale_of("tiny", dtype)
    assert 1.0 < scale_of("huge", dtype) < limits.max
    (drawn,) = draw_arguments((Normal((50,), values="subnormal"),), seed=1, dtype=dtype)
    assert drawn is not None
    assert drawn.any()


@pytest.mark.parametrize("shape", [(3, 5), (2, 4), (1, 1)], ids=str)
def test_cancelling_values_add_up_to_zero(shape: tuple[int, ...]) -> None:
    (drawn,) = draw_arguments((Normal(shape, values="cancelling"),), seed=1, dtype=torch.float64)
    assert drawn is not None
    assert float(drawn.sum().abs()) < 1e-12
    assert bool(drawn.any()) is (drawn.numel() > 1)


def test_every_second_micro_batch_of_a_ragged_trial_has_one_row_less() -> None:
    trial = Trial(stages=(planned_case(Plan(entry="integers")),), program="F0 F1 B0 B1", ragged=True)
    assert "ragged" in trial.needs
    materials = Materials(trial, dtype=torch.float32, device=CPU, seed=1)
    stage = materials.stage(0)
    for mb, rows in {0: 3, 1: 2}.items():
        assert [len(arg) for arg in materials.args(0, mb, stage)] == [rows, rows]
        assert [len(grad) for grad in materials.output_grads(0, mb)] == [rows]
        assert [len(wanted) for wanted in materials.target(0, mb)] == [rows]


def test_an_unknown_kind_of_values_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown values='vast'; expected usual, cancelling, uneven, zero or one of"):
        scale_of("vast", torch.float32)


def test_arguments_that_share_memory_have_separate_gradients() -> None:
    recipes = (Normal((2,)), SharesMemory(0))
    one, other = place_arguments(recipes, draw_arguments(recipes, seed=1, dtype=torch.float32), torch.nn.Module(), CPU)
    assert one.data_ptr() == other.data_ptr()
    (one + 3 * other).sum().backward()
    assert (one.grad.tolist(), other.grad.tolist()) == ([1.0, 1.0], [3.0, 3.0])


def test_a_plan_is_frozen() -> None:
    assert replace(Plan(), exit="dict").build().forward(torch.ones(3, 5)).keys() == {"hidden", "cache", "extra"}
