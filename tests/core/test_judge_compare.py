"""One tensor against plain autograd's: the message for each way of being wrong, to the letter."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from expecttest import assert_expected_inline
from torch import Tensor

from gradconform import tolerance
from gradconform.judge.finding import Finding, error_ratios_in, findings_in
from gradconform.judge.values import Known, compare
from gradconform.trial.program import Action


@pytest.fixture(autouse=True)
def _factors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fix c, so that the bounds in the messages stand whatever tolerances.toml says."""
    monkeypatch.setattr(tolerance, "_OVERRIDES", {"float32": 4.0, "float64": 4.0})


def findings(got: object, expected: object, reference: Any = None) -> tuple[list[Finding], list[float]]:
    judged = list(compare("parameter gradient", "layers.0.weight", Action("W", 3), got, expected, reference))
    return findings_in(judged), error_ratios_in(judged)


def told(got: object, expected: object, reference: Any = None) -> str:
    return "\n".join(map(str, findings(got, expected, reference)[0]))


def test_a_wrong_number_is_reported_with_error_bound_and_ratio() -> None:
    expected = torch.tensor([[1.0, 2.0], [8.0, 0.5]])
    got = expected + torch.tensor([[0.0, 0.0], [0.0, 0.25]])
    assert_expected_inline(
        told(got, expected, lambda: Known(expected.double())),
        """layers.0.weight, after W3: worst at [1, 1]: expected 0.5, got 0.75; error 0.25, bound 3.81e-06, error/bound 6.55e+04""",  # noqa: E501 (as it is shown)
    )


def test_the_numbers_of_a_finding_match_its_message() -> None:
    expected = torch.tensor([[1.0, 2.0], [8.0, 0.5]])
    (finding,), error_ratios = findings(expected + 0.25, expected)
    assert finding.kind == "mismatch"
    assert finding.error == 0.25
    assert finding.bound == 8 * 2**-21
    assert finding.error_ratio is not None
    assert finding.error_ratio >= 0.25 / (8 * 2**-21)
    assert error_ratios == [finding.error_ratio]


def test_none_instead_of_a_tensor_is_missing() -> None:
    assert_expected_inline(
        told(None, torch.full((2, 3), 0.5)),
        """layers.0.weight, after W3: expected a tensor of shape (2, 3) with largest element 0.5, got None""",
    )
    assert findings(None, torch.ones(1))[0][0].kind == "missing"


def test_a_tensor_instead_of_none_is_unexpected_even_if_it_is_zero() -> None:
    assert_expected_inline(
        told(torch.zeros(2, 3), None),
        """layers.0.weight, after W3: expected None, got a tensor of shape (2, 3) with largest element 0""",
    )
    assert findings(torch.zeros(2), None)[0][0].kind == "unexpected"


def test_a_value_that_is_not_a_tensor_is_reported_as_it_is() -> None:
    assert_expected_inline(
        told(0.5, torch.tensor(0.5)),
        """layers.0.weight, after W3: expected a tensor of shape () with largest element 0.5, got 0.5""",
    )


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.parametrize(
    ("got", "kind", "text"),
    [
        (torch.ones(3, 2), "shape", "expected shape (2, 3), got (3, 2)"),
        (torch.ones(6), "shape", "expected shape (2, 3), got (6,)"),
        (torch.ones(2, 3, 1), "shape", "expected shape (2, 3), got (2, 3, 1)"),
        (torch.ones(2, 3, dtype=torch.float64), "dtype", "expected dtype torch.float32, got torch.float64"),
        (torch.ones(2, 3, device="meta"), "device", "expected device cpu, got meta"),
        (torch.ones(2, 3).to_sparse(), "layout", "expected layout torch.strided, got torch.sparse_coo"),
    ],
    ids=["transposed", "flat", "extra dimension", "dtype", "device", "layout"],
)
def test_a_wrong_shape_or_type_is_reported_before_any_number(got: Tensor, kind: str, text: str) -> None:
    (finding,), error_ratios = findings(got, torch.ones(2, 3))
    assert (finding.kind, finding.text) == (kind, text)
    assert error_ratios == []


def test_a_misplaced_nan_is_reported_separately_from_the_numbers() -> None:
    expected = torch.tensor([1.0, math.nan, 2.0, math.inf])
    got = torch.tensor([math.nan, 1.0, 3.0, math.inf])
    assert_expected_inline(
        told(got, expected),
        """\
layers.0.weight (NaN and inf), after W3: at [0]: expected 1, got nan (2 elements)
layers.0.weight, after W3: worst at [2]: expected 2, got 3; error 1, bound 9.54e-07, error/bound 1.05e+06""",
    )


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.inf, 1.0),
        (1.0, math.inf),
        (complex(math.nan, 1), 1 + 1j),
        (complex(math.inf, 1), 1 + 1j),
    ],
)
def test_nan_and_inf_must_be_where_plain_autograd_has_them(got: complex, expected: complex) -> None:
    found, _ = findings(torch.tensor([2.0, got]), torch.tensor([2.0, expected]))
    assert [finding.kind for finding in found] == ["nonfinite"]
    assert not findings(torch.tensor([2.0, got]), torch.tensor([2.0, got]))[0]


@pytest.mark.parametrize(
    ("got", "expected", "exact", "accused"),
    [
        (-54080.0, -math.inf, -54080.0, False),  # plain autograd's sum went past the largest number on its way
        (-65504.0, -math.inf, -80000.0, True),  # clipped
        (-65504.0, -math.inf, -math.inf, True),
        (-54080.0, -math.inf, -math.inf, True),
        (math.inf, 65504.0, 65500.0, False),  # a rounding away from it
        (-math.inf, 65504.0, 65500.0, True),
        (math.inf, 60000.0, 60000.0, True),
        (math.inf, 65504.0, math.inf, True),
        (math.nan, -math.inf, -54080.0, False),  # two overflows that cancel
        (-54080.0, math.nan, -54080.0, False),
        (-math.inf, math.nan, -54080.0, False),
        (-math.inf, math.nan, math.nan, False),  # two formulas that agree for every finite gradient
        (math.nan, 60000.0, 60000.0, True),
        (-40000.0, math.nan, -54080.0, True),
    ],
)
def test_an_overflow_that_depends_on_summation_order_is_not_reported(
    got: float, expected: float, exact: float, *, accused: bool
) -> None:
    one, other = (torch.tensor([2.0, number], dtype=torch.float16) for number in (got, expected))
    found, _ = findings(one, other, lambda: Known(torch.tensor([2.0, exact], dtype=torch.float64)))
    assert [finding.kind for finding in found] == ["nonfinite"] * accused


def test_a_bit_equal_tensor_has_error_ratio_zero_and_needs_no_reference() -> None:
    def reference() -> Known:
        pytest.fail("reference64 was computed for a gradient that is bit-equal")

    assert findings(torch.ones(3), torch.ones(3), reference) == ([], [0.0])


def test_a_gradient_closer_to_the_truth_than_autograd_passes() -> None:
    truth = torch.tensor([1.0], dtype=torch.float64)
    found, (error_ratio,) = findings(torch.ones(1), torch.tensor([1.0 + 2**-12]), lambda: Known(truth))
    assert not found
    assert error_ratio == 0.0


def test_in_float64_plain_autograd_is_the_reference() -> None:
    far = torch.tensor([9.0], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    assert not findings(one + 2**-52, one, lambda: Known(far))[0]
    assert findings(one + 2**-48, one, lambda: Known(far))[0]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_sparse_gradients_are_compared_by_value() -> None:
    dense = torch.tensor([[0.0, 0.0], [3.0, 0.0]])
    doubled = torch.sparse_coo_tensor(torch.tensor([[1, 1], [0, 0]]), torch.tensor([1.0, 2.0]), (2, 2))
    assert findings(doubled, dense.to_sparse()) == ([], [0.0])
    assert findings(dense.to_sparse() * 2, dense.to_sparse())[0][0].kind == "mismatch"


def test_integers_are_equal_or_wrong() -> None:
    assert_expected_inline(
        told(torch.tensor([1, 2, 4]), torch.tensor([1, 2, 3])),
        """layers.0.weight, after W3: expected plain autograd's integers, got others in 1 of 3 elements""",
    )


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_scalars_and_empty_tensors_are_compared_like_other_tensors(shape: tuple[int, ...]) -> None:
    assert findings(torch.ones(shape), torch.ones(shape)) == ([], [0.0])
    wrong, _ = findings(torch.ones(shape) + 1, torch.ones(shape))
    assert len(wrong) == torch.ones(shape).numel()


def test_a_wrong_scalar_is_reported_with_an_empty_index() -> None:
    assert "worst at []: expected 1, got 2;" in told(torch.tensor(2.0), torch.tensor(1.0))
