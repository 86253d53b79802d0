"""Blocks of models at a ladder of sizes: nobody who is right is accused, and what large sizes alone show is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gradconform import check_stage_backward
from gradconform.contract.extra_ids import ALL
from gradconform.fixtures.blocks.size import LADDER, rungs
from gradconform.fixtures.blocks.zoo import BLOCKS
from gradconform.fixtures.stages.shown_traits import shown
from gradconform.reference import split
from gradconform.reference.variants import VARIANTS
from gradconform.results import Report
from gradconform.sources.blocks.checks import memory_of, select_checks

Judge = Callable[..., Report]
DTYPES = ("float32", "float64", "bfloat16", "float16")
IN_CI = {"sums-in-pairs": "bfloat16", "sums-in-float64": "float16", "full-of-both": "float32"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *IN_CI.items(),
        *(
            pytest.param(name, dtype, marks=pytest.mark.nightly)
            for name in VARIANTS
            for dtype in DTYPES
            if IN_CI.get(name) != dtype
        ),
    ],
)
def test_every_right_variant_passes_on_blocks(name: str, dtype: str, judge: Judge) -> None:
    report = judge(VARIANTS[name](), block=ALL, dtype=dtype, strict=True, diagnose=False)
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.summary["error"] == 0
    assert report.summary["passed"] > 100


@pytest.mark.nightly
def test_a_right_split_backward_passes_at_a_million_values(judge: Judge) -> None:
    report = judge("reference-split", block=ALL, sizes="large", strict=True, diagnose=False)
    assert report.summary["passed"] == len(report.results)


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_has_no_additional_trait_at_a_larger_size(name: str) -> None:
    lowest, *others = LADDER["small"]
    expected = shown(BLOCKS[name].at(lowest), torch.float32)
    for size in others:
        assert shown(BLOCKS[name].at(size), torch.float32) <= expected, size.name


class _WrongAbove:
    """A weight gradient that is wrong where it was computed from more than so many values, as a kernel may be."""

    def __init__(self, elements: int) -> None:
        self.elements = elements
        self.stage_backward, self.stage_backward_input = split.stage_backward, split.stage_backward_input

    def stage_backward_weight(self, weights: Iterator[Any], groups: Any, **options: Any) -> Any:
        several = list(weights)
        found = split.stage_backward_weight(iter(several), groups, **options)
        for weight in several:
            if weight.grad is not None and weight.grad.numel() > self.elements:
                weight.grad.reshape(-1)[self.elements] *= 1.5
        return found


def test_an_error_only_in_large_tensors_is_found_only_above_that_size() -> None:
    made = _WrongAbove(2**12)
    report = check_stage_backward(made, block="swiglu")
    failed = {result.check.rpartition(".")[2] for result in report.failures}
    assert failed == {size.name for size in LADDER["small"] if size.hidden * (size.hidden * 8 // 3) > 2**12}


def test_a_block_too_large_for_the_memory_is_skipped_and_reported() -> None:
    asked = select_checks(["rms-norm"], "full")
    assert set(asked.left_out) >= {"rms-norm at-2-31", "rms-norm above-2-31"}
    assert "skipped, too large for the memory" in asked.description
    assert asked.stages + len(asked.left_out) == len(rungs("full"))


def test_the_estimate_of_memory_grows_with_the_size() -> None:
    for block in BLOCKS.values():
        assert memory_of(block, LADDER["full"][1]) > memory_of(block, LADDER["small"][0]) > 0


def test_block_sizes_are_on_both_sides_of_powers_of_two() -> None:
    elements = {size.name: size.elements for size in rungs("full")}
    for power in (15, 20, 31):
        assert elements[f"below-2-{power}"] < elements[f"at-2-{power}"] == 2**power < elements[f"above-2-{power}"]
