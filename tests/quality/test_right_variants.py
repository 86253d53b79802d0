"""Nothing in the contract accuses an implementation that is right and written in another way.

CI judges each variant by all of profile standard in float32, or in one of the other dtypes by half of all gradients,
which is what a dtype changes, and by a part of the rest, so that each check meets some variants in each dtype; the
nightly tests judge each by all, in every dtype.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from gradconform import check_stage_backward, contract
from gradconform.reference.variants import VARIANTS, edges
from gradconform.results import Report

Judge = Callable[..., Report]

OTHER_DTYPES = ("float64", "bfloat16", "float16")

#: The areas that ask for gradients of one stage at a time, every one of which a dtype can change.
GRADIENTS = ("accumulate", "full", "property", "split")
STANDARD = {name: check for name, check in contract.checks_of().items() if check.profile != "full"}
OF_GRADIENTS = sorted(name for name, check in STANDARD.items() if check.area in GRADIENTS)
REST = sorted(set(STANDARD) - set(OF_GRADIENTS))
PARTS = 4
#: The variants that CI judges in another dtype than float32.
IN_ANOTHER_DTYPE = [name for name in list(VARIANTS)[1::2] if name not in edges.VARIANTS]


def dtype_of(name: str) -> str:
    """Return the dtype other than float32 that CI judges a variant in."""
    position = list(VARIANTS).index(name)
    return OTHER_DTYPES[(position + position // len(OTHER_DTYPES)) % len(OTHER_DTYPES)]


def part_of(name: str) -> list[str]:
    """Return what a variant meets in its other dtype: the variants of one dtype take the parts in turn."""
    alike = [other for other in VARIANTS if dtype_of(other) == dtype_of(name)]
    alike.sort(key=lambda other: other not in IN_ANOTHER_DTYPE)  # those of CI first
    number = alike.index(name)
    return OF_GRADIENTS[number % 2 :: 2] + REST[number % PARTS :: PARTS]


def assert_clean(report: Report, at_least: int = 500) -> None:
    """Nothing that is claimed fails, and it is unsupported only where plain autograd itself cannot do it.

    Profile full tries what is not claimed too, and tells of wrong numbers there what they are, naming the claim.
    """
    claimed = [result for result in report if not result.unclaimed]
    assert [(result.check, result.message) for result in claimed if result.status == "failed"] == []
    assert {result.kind for result in claimed if result.status == "unsupported"} <= {"environment"}
    assert report.summary["error"] == 0
    assert report.summary["passed"] > at_least  # what is not claimed is unsupported, and must not be most of it


def assert_conforms(report: Report) -> None:
    assert_clean(report)
    # What is withheld by name takes from the coverage of the verdict, and accuses nobody.
    assert report.verdict in {"conforms", "conforms in part"} or report.lacks


#: The areas at whose edges some variants live.
AT_THE_EDGES = ["accumulate.at_once.*", "caller.*", "differing.*", "errors.*", "grad_tuple.none*", "misuse.*", "mode.*"]


@pytest.mark.parametrize("name", edges.VARIANTS)
def test_a_right_variant_at_the_edges_passes_the_areas_that_vary_them(name: str, judge: Judge) -> None:
    assert_clean(judge(VARIANTS[name](), strict=True, checks=AT_THE_EDGES), at_least=120)


# In CI each variant is judged in one dtype, in float32 or in another; nightly in both.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in {*IN_ANOTHER_DTYPE, *edges.VARIANTS} else ())
        for name in VARIANTS
    ],
)
def test_a_right_variant_has_no_failure_and_no_error(name: str, judge: Judge) -> None:
    assert_conforms(judge(VARIANTS[name](), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype_of(name), marks=() if name in IN_ANOTHER_DTYPE else pytest.mark.nightly)
        for name in VARIANTS
    ],
)
def test_a_right_variant_passes_in_another_dtype(name: str, dtype: str, judge: Judge) -> None:
    assert_clean(judge(VARIANTS[name](), dtype=dtype, strict=True, checks=part_of(name)), at_least=150)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", OTHER_DTYPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_variant_passes_profile_standard_in_other_dtypes(name: str, dtype: str) -> None:
    assert_conforms(check_stage_backward(VARIANTS[name](), dtype=dtype, strict=True))


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", ["float32", *OTHER_DTYPES])
@pytest.mark.parametrize("name", VARIANTS)
def test_a_right_variant_passes_the_whole_contract(name: str, dtype: str, judge: Judge) -> None:
    assert_clean(judge(VARIANTS[name](), dtype=dtype, profile="full", strict=True, diagnose=False), at_least=750)


def test_there_are_at_least_40_right_variants() -> None:
    assert len(VARIANTS) >= 40


@pytest.mark.parametrize("dtype", OTHER_DTYPES)
def test_each_check_runs_on_at_least_two_variants_in_a_dtype(dtype: str) -> None:
    alike = [name for name in VARIANTS if dtype_of(name) == dtype]
    met = Counter(check for name in alike for check in part_of(name))
    assert set(met) == set(STANDARD)
    assert min(met.values()) >= 2
    assert {check for name in alike if name in IN_ANOTHER_DTYPE for check in part_of(name)} == set(STANDARD)
