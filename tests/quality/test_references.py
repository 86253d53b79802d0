"""What is known right gets no failure and no error: the kit accuses nobody who is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gradconform import contract
from gradconform.results import Report

Judge = Callable[..., Report]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("target", ["autograd", "reference-split"])
def test_known_right_targets_conform(target: str, dtype: str, judge: Judge) -> None:
    report = judge(target, dtype=dtype, strict=True)
    assert [f"{result.check}: {result.message}" for result in report.failures] == []
    assert report.coverage is not None
    # torch has no complex numbers of bfloat16.
    left = {"bfloat16": report.coverage.impossible}.get(dtype, 0)
    assert report.coverage == replace(report.coverage, withheld={}, refused=0, impossible=left, lacks=())
    assert report.verdict == ("conforms in part" if left else "conforms")
    # Neither may be spared: only what no dtype, or no adapter of this kind, can do is left out.
    lists = sum("lists" in check.needs for check in contract.checks_of().values() if check.profile != "full")
    allowed = {"autograd": 8 + lists, "reference-split": 2}[target] + (6 if dtype == "bfloat16" else 0)
    assert report.summary["unsupported"] <= allowed


def test_the_split_reference_conforms_in_profile_quick(judge: Judge) -> None:
    report = judge("reference-split", profile="quick", strict=True)
    assert [f"{result.check}: {result.message}" for result in report.failures] == []
    assert report.verdict == "conforms"
    assert report.summary["unsupported"] <= 4


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_split_reference_conforms_in_profile_full(dtype: str, judge: Judge) -> None:
    report = judge("reference-split", dtype=dtype, profile="full", strict=True)
    assert [f"{result.check}: {result.message}" for result in report.failures] == []
    assert report.conforms


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2))])
def test_another_seed_gives_no_failure_for_a_right_target(seed: int, judge: Judge) -> None:
    report = judge("reference-split", seed=seed, strict=True)
    assert [f"{result.check}: {result.message}" for result in report.failures] == []
