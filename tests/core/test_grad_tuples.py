"""Output gradients: what a pattern drops, lays out or spoils, and that it leaves the drawn ones alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from gradconform.fixtures.grad_tuples import WRONG_PATTERNS, apply_pattern, draw_output_grads
from gradconform.trees import leaves

CPU = torch.device("cpu")


def three() -> tuple[Tensor, ...]:
    return tuple(torch.arange(1.0, 16.0).reshape(5, 3) + 100 * index for index in range(3))


def which_are_none(grads: Any) -> list[bool]:
    return [leaf is None for _, leaf in leaves(grads)]


@pytest.mark.parametrize(
    ("pattern", "none"),
    [
        ("normal", [False, False, False]),
        ("none:0", [True, False, False]),
        ("none:2", [False, False, True]),
        ("none:0,2", [True, False, True]),
        ("none:all", [True, True, True]),
        ("only:1", [True, False, True]),
        ("only:0,1", [False, False, True]),
        ("only:all", [False, False, False]),
    ],
)
def test_a_pattern_sets_none_at_its_indices(pattern: str, none: list[bool]) -> None:
    placed = apply_pattern(three(), pattern, CPU)
    assert which_are_none(placed) == none
    for got, drawn in zip(placed, three(), strict=True):
        assert got is None or torch.equal(got, drawn)


def test_none_indices_count_leaves_of_a_nested_structure() -> None:
    a, b, c = three()
    placed = apply_pattern({"x": (a, b), "y": [c]}, "none:1", CPU)
    assert which_are_none(placed) == [False, True, False]
    assert placed["x"][1] is None
    assert isinstance(placed["y"], list)


@pytest.mark.parametrize("pattern", ["none:3", "only:3", "none:0,7", "none:", "none:-1", "none:x", "only"])
def test_an_index_without_an_output_is_refused_with_its_text(pattern: str) -> None:
    argument = pattern.partition(":")[2]
    with pytest.raises(ValueError, match="expected indices below 3 such as 0,1, or all") as raised:
        apply_pattern(three(), pattern, CPU)
    assert repr(argument) in str(raised.value)


def test_an_unknown_pattern_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown gradient pattern='odd'; expected normal, none:…, only:…, layout:…"):
        apply_pattern(three(), "odd", CPU)


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown layout='diagonal'"):
        apply_pattern(three(), "layout:diagonal", CPU)


@pytest.mark.parametrize(
    ("pattern", "strides"), [("layout:transposed", (1, 5)), ("layout:strided", (6, 2)), ("layout:expanded", (0, 0))]
)
def test_a_layout_has_the_strides_of_its_name(pattern: str, strides: tuple[int, int]) -> None:
    assert [grad.stride() for grad in apply_pattern(three(), pattern, CPU)] == [strides] * 3


def test_pattern_zeros_sets_every_element_to_zero() -> None:
    assert all(not grad.any() for grad in apply_pattern(three(), "zeros", CPU))


@pytest.mark.parametrize(("pattern", "is_it"), [("nan", torch.isnan), ("inf", torch.isinf)])
def test_patterns_nan_and_inf_set_one_element_of_the_first_gradient(pattern: str, is_it: Any) -> None:
    placed = apply_pattern((None, *three()), pattern, CPU)
    assert [0 if grad is None else int(is_it(grad).sum()) for grad in placed] == [0, 1, 0, 0]
    assert all(math.isfinite(value) for value in placed[1][0].tolist())


def test_each_wrong_pattern_has_the_error_of_its_name() -> None:
    made = {pattern: apply_pattern(three(), pattern, CPU) for pattern in WRONG_PATTERNS}
    assert len(made["short"]) == 2
    assert len(made["long"]) == 4
    assert [tuple(grad.shape) for grad in made["shape"]] == [(6, 3), (5, 3), (5, 3)]
    assert [tuple(grad.shape) for grad in made["broadcast"]] == [(1, 3), (5, 3), (5, 3)]
    assert made["number"][0] == 1.0
    assert not isinstance(made["number"][0], Tensor)
    assert list(made["structure"]) == ["output0", "output1", "output2"]


@pytest.mark.parametrize("pattern", ["normal", "none:1", "zeros", "nan", "inf", *WRONG_PATTERNS])
def test_applying_a_pattern_does_not_change_the_drawn_gradients(pattern: str) -> None:
    drawn = three()
    placed = apply_pattern(drawn, pattern, CPU)
    for _, grad in leaves(placed):
        if isinstance(grad, Tensor):
            grad.fill_(7.0)
    assert all(torch.equal(grad, other) for grad, other in zip(drawn, three(), strict=True))


def test_drawn_gradients_match_the_outputs_and_are_none_if_not_required() -> None:
    outputs = {
        "a": torch.zeros(5, 3, requires_grad=True),
        "b": [torch.zeros(2, dtype=torch.bfloat16, requires_grad=True), torch.zeros(2), 3],
        "c": torch.zeros(2, dtype=torch.complex64, requires_grad=True),
    }
    drawn = draw_output_grads(outputs, seed=0)
    assert drawn["a"].shape == (5, 3)
    assert drawn["b"][0].dtype == torch.bfloat16
    assert drawn["b"][1:] == [None, None]
    assert drawn["c"].dtype == torch.complex64


def test_a_single_output_gets_a_tuple_of_one_gradient_decided_by_the_seed() -> None:
    output = torch.zeros(5, 3, requires_grad=True)
    (first,), (again,), (other,) = (draw_output_grads(output, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_gradient_is_drawn_in_float64_and_rounded_to_its_dtype() -> None:
    (wide,), (narrow,) = (
        draw_output_grads(torch.zeros(50, dtype=dtype, requires_grad=True), seed=3)
        for dtype in (torch.float64, torch.bfloat16)
    )
    assert torch.equal(wide.to(torch.bfloat16), narrow)
