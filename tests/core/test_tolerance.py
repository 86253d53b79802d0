"""The numeric rule, against numbers worked out by hand.

float32 has eps = 2**-23 and c = 4, so that the floor is 2**-21 of the scale; bfloat16 has eps = 2**-7.
"""

from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradconform import tolerance
from gradconform.tolerance import Judgement, Partials, describe, floor_factor, judge, override

UNIT = {dtype: floor_factor(dtype) * torch.finfo(dtype).eps for dtype in (torch.float32, torch.bfloat16, torch.float64)}


def f64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_the_bound_is_twice_the_error_of_autograd_and_a_floor() -> None:
    got, oracle = torch.tensor([8.0, 1.0 + 5 * 2**-20]), torch.tensor([8.0, 1.0 - 2**-20])
    judged = judge(got, oracle, f64(8.0, 1.0), Partials())
    assert judged.error == 5 * 2**-20
    assert judged.bound == 2 * 2**-20 + UNIT[torch.float32] * 8
    assert judged.worst == (1,)
    assert judged.error_ratio == pytest.approx(
        max(judged.error / judged.bound, 5 * 2**-20 / (2 * 2**-20 + UNIT[torch.float32] * math.sqrt(65)))
    )


@pytest.mark.parametrize("dtype", UNIT)
@pytest.mark.parametrize(("floors", "passes"), [(0.75, True), (1.0, True), (1.25, False)])
def test_if_autograd_is_exact_only_the_floor_decides(dtype: torch.dtype, *, floors: float, passes: bool) -> None:
    # In float64 the oracle is the reference, so that nothing but the floor is left there.
    got = f64(1.0 + floors * UNIT[dtype])
    reference = None if dtype == torch.float64 else f64(1.0)
    judged = judge(got, torch.ones(1, dtype=dtype), reference, Partials())
    assert judged.passed == passes
    assert judged.error_ratio == floors


def test_the_scale_is_the_largest_partial_sum_not_the_result() -> None:
    got, oracle, reference = torch.tensor([1.0 + 2**-17]), torch.tensor([1.0]), f64(1.0)
    assert not judge(got, oracle, reference, Partials()).passed
    assert judge(got, oracle, reference, Partials(peak=100.0, rms=100.0)).passed


def test_cancelling_terms_are_measured_only_if_the_bound_is_exceeded() -> None:
    asked: list[Partials] = []

    def judged(error: float, terms: float) -> Judgement:
        def measure() -> Partials:
            asked.append(Partials(peak=terms, rms=terms))
            return asked[-1]

        got, oracle = torch.tensor([error, 1.0]), torch.tensor([0.0, 1.0])
        return judge(got, oracle, f64(0.0, 1.0), Partials(), terms=measure)

    unit = floor_factor(torch.float32) * 2**-23
    assert judged(0.9 * unit, 100.0).passed
    assert not asked
    assert judged(90.0 * unit, 100.0).passed
    assert not judged(190.0 * unit, 100.0).passed
    assert judged(190.0 * unit, 100.0).error_ratio == pytest.approx(1.9)
    assert len(asked) == 3


def test_terms_of_ordinary_size_do_not_change_the_bound() -> None:
    got, oracle = torch.tensor([2.0 * floor_factor(torch.float32) * 2**-23, 1.0]), torch.tensor([0.0, 1.0])
    assert not judge(got, oracle, f64(0.0, 1.0), Partials(), terms=lambda: Partials(8.0, 8.0)).passed
    assert judge(got, oracle, f64(0.0, 1.0), Partials(), terms=lambda: Partials(8.1, 8.1)).passed


def test_many_small_errors_are_found_by_the_mean_although_each_is_within_the_bound() -> None:
    # One element of 1000 makes the floor of the largest error; the other 9999, of about 1, are all wrong by 2**-12.
    reference = torch.ones(10_000, dtype=torch.float64)
    reference[0] = 1000.0
    got = reference.float()
    got[1:] += 2**-12
    judged = judge(got, reference.float(), reference, Partials())
    assert judged.error < judged.bound
    assert judged.error_ratio > 1
    assert not judged.passed


def test_one_wrong_element_is_found_by_the_largest_error_although_the_mean_passes() -> None:
    reference = torch.ones(10_000, dtype=torch.float64)
    got = reference.float()
    got[4321] += 2**-18
    judged = judge(got, reference.float(), reference, Partials())
    rms_error, rms_bound = 2**-18 / 100, UNIT[torch.float32]
    assert rms_error < rms_bound
    assert judged.worst == (4321,)
    assert not judged.passed


@pytest.mark.parametrize("size", [1, 64, 65_536])
def test_the_bound_is_never_scaled_by_the_number_of_elements(size: int) -> None:
    reference = torch.ones(size, dtype=torch.float64)
    judged = judge(reference.float() * 1.05, reference.float(), reference, Partials())
    assert judged.bound == UNIT[torch.float32]
    assert not judged.passed


def test_non_finite_elements_of_autograd_are_ignored() -> None:
    nan, inf = math.nan, math.inf
    got, oracle = torch.tensor([nan, inf, -inf, 2.0]), torch.tensor([nan, inf, -inf, 2.0])
    judged = judge(got, oracle, f64(nan, inf, -inf, 2.0), Partials(peak=2.0, rms=2.0))
    assert judged == Judgement(error=0.0, bound=UNIT[torch.float32] * 2, error_ratio=0.0, worst=(0,))


def test_a_wrong_element_next_to_a_nan_is_found() -> None:
    got, oracle = torch.tensor([math.nan, 2.5]), torch.tensor([math.nan, 2.0])
    judged = judge(got, oracle, f64(math.nan, 2.0), Partials())
    assert judged.error == 0.5
    assert judged.worst == (1,)
    assert not judged.passed


def test_if_everything_is_zero_only_zero_passes() -> None:
    zero = torch.zeros(3)
    assert judge(zero, zero, zero.double(), Partials()) == Judgement(0.0, 0.0, 0.0, (0,))
    judged = judge(torch.tensor([0.0, 1e-30, 0.0]), zero, zero.double(), Partials())
    assert judged.error_ratio == sys.float_info.max
    assert not judged.passed


def test_a_complex_error_is_a_distance_in_the_plane() -> None:
    oracle = torch.tensor([3 + 4j], dtype=torch.complex64)
    got = oracle + (3 + 4j) * 2**-10
    judged = judge(got, oracle, oracle.to(torch.complex128), Partials())
    assert judged.error == 5 * 2**-10
    assert judged.bound == UNIT[torch.float32] * 5
    assert judge(oracle, oracle, None, Partials()).passed


def test_a_scalar_has_an_empty_index_and_an_empty_tensor_always_passes() -> None:
    assert judge(torch.tensor(1.5), torch.tensor(1.0), f64(1.0)[0], Partials()).worst == ()
    empty = torch.zeros(0, 3)
    assert judge(empty, empty, empty.double(), Partials()) == Judgement(0.0, 0.0, 0.0, ())


def test_the_worst_element_has_one_index_per_dimension() -> None:
    reference = torch.ones(3, 5, 7, dtype=torch.float64)
    got = reference.float()
    got[2, 0, 6] = 1.5
    got[0, 4, 1] = 1.25
    assert judge(got, reference.float(), reference, Partials()).worst == (2, 0, 6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("roundings", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 0)])
def test_among_equal_errors_up_to_rounding_the_first_element_is_the_worst(
    dtype: torch.dtype, roundings: tuple[int, ...]
) -> None:
    reference = torch.tensor([[4.0, 1.0, 1.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    wrong = torch.tensor([[0.0, 0.25, 1.0], [1.0, 0.0, 1.0]], dtype=torch.float64)
    noise = torch.zeros(2, 3, dtype=torch.float64)
    for place, count in zip([(0, 2), (1, 0), (1, 2)], roundings, strict=True):
        noise[place] = count * torch.finfo(dtype).eps
    oracle, exact = reference.to(dtype), None if dtype == torch.float64 else reference
    assert judge((reference + wrong + noise).to(dtype), oracle, exact, Partials()).worst == (0, 2)
    assert judge((reference - wrong - noise).to(dtype), oracle, exact, Partials()).worst == (0, 2)


def test_an_element_with_a_clearly_smaller_error_is_never_the_worst() -> None:
    reference = torch.ones(3, dtype=torch.float64)
    wrong = torch.tensor([0.0, 0.5 - 2**-16, 0.5], dtype=torch.float64)
    assert judge((reference + wrong).float(), reference.float(), reference, Partials()).worst == (2,)
    tiny = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64) * 2**-22
    assert judge((reference + tiny).float(), reference.float(), reference, Partials()).worst == (2,)


def test_partials_keep_the_largest_finite_values() -> None:
    partials = Partials().with_(torch.tensor([3.0, -4.0])).with_(torch.tensor([1.0, math.inf, math.nan, 1.0]))
    assert partials.peak == 4.0
    assert partials.rms == pytest.approx(math.sqrt(12.5))


@settings(max_examples=60)
@given(
    values=st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=9),
    signs=st.lists(st.sampled_from([-0.5, 0.5]), min_size=9, max_size=9),
)
def test_a_correctly_rounded_gradient_always_passes(values: list[float], signs: list[float]) -> None:
    exact = torch.tensor(values, dtype=torch.float64)
    rounded = exact.to(torch.bfloat16)
    nudge = torch.tensor(signs[: len(values)], dtype=torch.float64) * torch.finfo(torch.bfloat16).eps
    assert judge((exact * (1 + nudge)).to(torch.bfloat16), rounded, exact, Partials()).passed


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_of_the_contract_has_a_factor_of_at_least_two(dtype: torch.dtype) -> None:
    assert floor_factor(dtype) >= 2


def test_a_dtype_without_a_factor_is_refused_until_one_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerance, "_OVERRIDES", {})
    with pytest.raises(ValueError, match=r"no tolerance for torch.float8_e5m2; expected one of \['bfloat16', "):
        floor_factor(torch.float8_e5m2)
    override({"float8_e5m2": 3})
    assert floor_factor(torch.float8_e5m2) == 3


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "4", None])
def test_a_factor_that_is_not_a_positive_number_is_refused(value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tolerance, "_OVERRIDES", {})
    with pytest.raises(ValueError, match="expected a positive number, in units of eps times scale"):
        override({"float32": value})
    assert tolerance._OVERRIDES == {}


@pytest.mark.parametrize(
    ("value", "text"),
    [(torch.tensor(0.1), "0.100000001"), (torch.tensor(2), "2"), (torch.tensor(1 + 2j), "(1+2j)")],
)
def test_an_element_is_described_with_the_digits_of_float32(value: Tensor, text: str) -> None:
    assert describe(value) == text


def test_elements_equal_in_float32_are_described_with_float64_digits() -> None:
    one, other = torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.1 + 2**-40, dtype=torch.float64)
    assert (describe(one, other), describe(other, one)) == ("0.10000000000000001", "0.1000000000009095")
    assert describe(one, torch.tensor(0.2)) == describe(one, one) == "0.1"
