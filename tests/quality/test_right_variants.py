"""Nothing in the contract accuses an implementation that is right and written in another way."""

from __future__ import annotations

import pytest

from gradconform import check_stage_backward
from gradconform.reference.variants import VARIANTS


def assert_clean(name: str, dtype: str, profile: str = "standard") -> None:
    report = check_stage_backward(VARIANTS[name](), dtype=dtype, profile=profile, strict=True)
    assert [(result.check, result.message) for result in report.failures] == []
    # What is withheld by name takes from the extent of the verdict, and accuses nobody.
    assert report.verdict in {"conforms", "conforms in part"} or report.lacks
    assert report.summary["passed"] > 500  # what is not claimed is unsupported, and must not be most of it


@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_variant_has_no_failure_and_no_error(name: str) -> None:
    assert_clean(name, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_variant_is_clean_in_other_dtypes(name: str, dtype: str) -> None:
    assert_clean(name, dtype)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_variant_is_clean_in_the_whole_contract(name: str, dtype: str) -> None:
    assert_clean(name, dtype, "full")


def test_there_are_variants_enough_to_differ_in() -> None:
    assert len(VARIANTS) >= 25
