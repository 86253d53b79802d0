"""The rule of the mean: what points in one direction over many draws is a bias, what rounding gives is none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from gradconform import check_stage_backward
from gradconform.contract.areas import CHECKS
from gradconform.contract.cases import DRAWS
from gradconform.devices.dtypes import dtype_named
from gradconform.drive.evidence import Evidence
from gradconform.judge.bias import BIAS, TOGETHER, Draw
from gradconform.judge.finding import findings_in
from gradconform.judge.mean_rule import STEADY, Errors, judge_shift, judge_spread, settled
from gradconform.reference.faults import FAULTS
from gradconform.reference.variants import VARIANTS
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve
from gradconform.trees import tensors
from gradconform.trial.trial import Trial

BF16 = torch.bfloat16
EPS = torch.finfo(BF16).eps


def errors(shift: float, *, slope: float = 0.0, square: float = 0.0, oracle_square: float = 0.0) -> Errors:
    """Return the errors of one draw; what is left out is 0."""
    return Errors(1000.0, shift, slope, square, oracle_square)


def test_the_slope_is_that_of_a_regression_through_the_origin() -> None:
    reference = torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64)
    found = Errors.of(reference * 1.01, reference * 0.99, reference)
    assert found is not None
    assert found.shift == pytest.approx(0.02)
    assert found.slope == pytest.approx(-0.01)
    assert (found.square, found.oracle_square) == (pytest.approx(1e-4), pytest.approx(1e-4))
    assert found.weight == pytest.approx((9 + 16) ** 2 / (81 + 256))


def test_non_finite_and_all_zero_values_have_no_slope() -> None:
    one = torch.ones(2)
    assert Errors.of(one * math.inf, one, one) is None
    assert Errors.of(one, one, torch.zeros(2)) is None


def test_shifts_of_one_sign_are_a_bias_and_balanced_shifts_are_not() -> None:
    one_way = [errors(0.01)] * DRAWS
    either_way = [errors(0.01 * (-1) ** number) for number in range(DRAWS)]
    assert judge_shift(DRAWS, one_way, BF16)[2] == pytest.approx(math.sqrt(DRAWS) / STEADY)
    assert judge_shift(DRAWS, either_way, BF16)[2] == 0.0


def test_a_few_large_shifts_are_not_a_bias() -> None:
    assert judge_shift(DRAWS, [errors(0.1)] * int(STEADY**2), BF16)[2] <= 1.0


def test_a_steady_shift_below_the_floor_is_not_a_bias() -> None:
    assert judge_shift(DRAWS, [errors(0.009 * EPS)] * DRAWS, BF16)[2] < 1.0
    assert judge_shift(DRAWS, [errors(0.011 * EPS)] * DRAWS, BF16)[2] > 1.0


def test_a_target_that_corrects_the_bias_of_plain_autograd_passes() -> None:
    undone = [errors(0.01, slope=-0.01, oracle_square=1e-4)] * DRAWS
    worse = [errors(-0.01, slope=-0.01, square=4e-4, oracle_square=1e-4)] * DRAWS
    assert judge_shift(DRAWS, undone, BF16)[2] == 0.0
    assert judge_shift(DRAWS, worse, BF16)[2] > 1.0


def test_a_spread_may_be_twice_plain_autograds_plus_the_floor() -> None:
    plain = 0.5 * EPS
    assert judge_spread(DRAWS, [errors(0.0, square=(1.49 * EPS) ** 2, oracle_square=plain**2)] * DRAWS, BF16)[2] < 1.0
    assert judge_spread(DRAWS, [errors(0.0, square=(1.51 * EPS) ** 2, oracle_square=plain**2)] * DRAWS, BF16)[2] > 1.0


def test_in_float64_no_spread_is_reported() -> None:
    """A gradient that cancels is right where it is off by much of its value, and float64 has nothing to show that."""

    def draws(dtype: torch.dtype) -> list[Draw]:
        signs = (1.0, -1.0) * (DRAWS // 2)
        return [Draw(dtype, (("parameter gradient", "w", errors(sign * 0.06, square=0.06**2)),)) for sign in signs]

    assert findings_in(BIAS.judge(draws(torch.float32)))
    assert not findings_in(BIAS.judge(draws(torch.float64)))


def test_remaining_draws_are_skipped_if_they_cannot_change_the_verdict() -> None:
    at_least = DRAWS - int(STEADY**2)
    assert settled(DRAWS, at_least)
    assert not settled(DRAWS, at_least - 1)
    assert judge_shift(DRAWS, [errors(1.0)] * (DRAWS - at_least), BF16)[2] <= 1.0


class Counted(Runner):
    """Counts the trials that are run, its pre-flight aside."""

    ran = 0

    def evidence(self, trial: Trial) -> Evidence:
        self.ran += trial.stages[0].name == "thousands"
        return super().evidence(trial)


def test_a_bit_equal_target_runs_fewer_draws_than_another() -> None:
    for target, ran in (("reference-split", DRAWS - int(STEADY**2)), (VARIANTS["main-grad-in-float32"](), DRAWS)):
        runner = Counted(resolve(target), device=torch.device("cpu"), dtype=BF16)
        assert runner.run(CHECKS["full.bias.gradients"]).status == "passed"
        assert runner.ran == ran


def test_the_draws_of_a_check_differ_in_all_random_values() -> None:
    runner = Runner(resolve("autograd"), device=torch.device("cpu"), dtype=BF16)
    first, second = (runner.evidence(trial).materials for trial in CHECKS["full.bias.loss"].trials[:2])
    assert first.seed != second.seed
    for one, other in ((first.drawn(0, 0), second.drawn(0, 0)), (first.target(0, 0), second.target(0, 0))):
        assert all(not torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def test_a_bias_too_small_in_each_parameter_is_found_in_all_together() -> None:
    check = CHECKS["full.bias.gradients"]
    runner = Runner(
        resolve(FAULTS["parameter-gradients-slightly-large"].make()), device=torch.device("cpu"), dtype=BF16
    )
    draws = [BIAS.read(runner.evidence(trial)) for trial in check.trials]
    together = [replace(draw, errors=tuple(e for e in draw.errors if e[1] == TOGETHER)) for draw in draws]
    (finding,) = findings_in(BIAS.judge(together))
    assert finding.where == TOGETHER
    assert finding.cause is not None
    assert finding.cause.factors == (pytest.approx(0.0097, rel=0.05),)
    assert TOGETHER not in {told.where for told in findings_in(BIAS.judge(draws))}  # told alone where one shows it


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_sums_in_higher_precision_pass(dtype: str) -> None:
    assert dtype_named(dtype).is_floating_point
    for name in ("main-grad-in-float32", "sums-in-float64"):
        report = check_stage_backward(VARIANTS[name](), checks=["*.bias.gradients", "*.bias.loss"], dtype=dtype)
        assert {result.status for result in report} == {"passed"}


def test_a_gross_error_is_reported_in_the_first_draw_by_its_elements() -> None:
    report = check_stage_backward(FAULTS["doubled"].make(), checks=["full.bias.gradients"])
    (result,) = report
    assert result.status == "failed"
    assert "the mean error" not in result.message
    assert len(result.findings) < DRAWS
