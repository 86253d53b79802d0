"""The headline of a cause says what its findings say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradconform import Report
from gradconform.reference.faults import FAULTS
from gradconform.report.by_cause import by_cause

Judge = Callable[..., Report]


@pytest.mark.parametrize(
    ("fault", "checks", "headline", "finding"),
    [
        (
            "returned-gradients-require-grad",
            "full.gradients.mlp",
            "after B, an input gradient requires a gradient itself (plain autograd: no)",
            "requires a gradient itself (plain autograd: no)",
        ),
        (
            "gradients-with-a-history",
            "full.gradients.mlp",
            "after B, a parameter gradient requires a gradient itself (plain autograd: no)",
            "requires a gradient itself (plain autograd: no)",
        ),
        (
            "zeros-for-none",
            "full.gradients.unused-input",
            "after B, an input gradient is a tensor (plain autograd: None)",
            "expected None",
        ),
    ],
)
def test_a_headline_says_what_its_finding_says(
    fault: str, checks: str, headline: str, finding: str, judge: Judge
) -> None:
    report = judge(FAULTS[fault].make(), checks=(checks,))
    (cause,) = by_cause(report.failures)
    assert cause.symptom == headline
    assert {str(one["text"]).partition(",")[0] for result in cause.results for one in result.findings} == {finding}
