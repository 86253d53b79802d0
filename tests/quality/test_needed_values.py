"""A failing row of the space tells which of its values the failure needs, and a right run does nothing for it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from gradconform import check_stage_backward
from gradconform.contract.space.checks import ROWS
from gradconform.contract.space.reset import non_default_values, reset_value
from gradconform.reference import split
from gradconform.reference.faults import FAULTS
from gradconform.report.by_cause import by_cause
from gradconform.results import Report
from gradconform.run import narrowing
from gradconform.run.narrowing import FindingsOf
from gradconform.text.findings import needed


def rows_with(way: str, values: Mapping[str, str], count: int = 2) -> list[str]:
    """Return the rows of a way that have some values, those with most that is not plain first."""
    found = [check for check, (of, row) in ROWS.items() if of == way and values.items() <= row.items()]
    return sorted(found, key=lambda check: -len(non_default_values(check) or ()))[:count]


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The checks for which a trial beside theirs is run, one entry per trial."""
    seen: list[str] = []

    class Counted(narrowing.NeededValues):
        def __init__(self, tried: FindingsOf) -> None:
            super().__init__(lambda check, trial: seen.append(check.id) or tried(check, trial))  # type: ignore[func-returns-value] # to see it

    monkeypatch.setattr("gradconform.run.runner.NeededValues", Counted)
    return seen


def judged(fault: str, values: Mapping[str, str], way: str = "split") -> Report:
    report = check_stage_backward(FAULTS[fault].make(), checks=rows_with(way, values))
    assert report.summary["failed"], "another value of a row may hide the fault there, but not in both"
    return report


@pytest.mark.parametrize(
    ("fault", "values"),
    [
        ("contexts-of-the-thread", {"mode": "thread"}),
        ("first-call-assigns", {"found": "prior"}),
        ("deterministic-algorithms-left-on", {"watched": "state"}),
    ],
)
def test_a_failure_names_exactly_the_values_it_needs(fault: str, values: dict[str, str]) -> None:
    report = judged(fault, values)
    ((name, word),) = values.items()
    told = [finding["needs"] for result in report for finding in result.findings]
    assert told == [values] * len(told)
    assert all(line.endswith(f"; only with: {name}={word}") for r in report for line in r.message.splitlines()[1:])
    assert all(cause.text.endswith(f"; only with: {name}={word}") for cause in by_cause(report.failures))


def test_a_failure_at_default_values_needs_no_value_of_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradconform.run.runner.AlikeFailures.explained", lambda *_: ())
    report = judged("doubled", {"mode": "thread"})
    assert {str(finding["needs"]) for result in report for finding in result.findings} == {"{}"}
    assert "only with" not in "".join(result.message for result in report)


def test_a_failure_that_a_single_mistake_explains_needs_no_search(tried: list[str]) -> None:
    report = judged("doubled", {"mode": "thread"})
    assert [finding["needs"] for result in report for finding in result.findings if finding["needs"]] == []
    assert all(any(not one["left"] for one in result.undone) for result in report)
    assert tried == []


def test_similar_failures_run_at_most_one_trial_per_value(tried: list[str]) -> None:
    first, second = rows_with("split", {"mode": "thread"})
    check_stage_backward(FAULTS["contexts-of-the-thread"].make(), checks=[first, second])
    assert 0 < tried.count(min(first, second)) <= len(non_default_values(min(first, second)) or ())
    assert len(tried) == tried.count(min(first, second)) or len(tried) <= 2 * max(
        len(non_default_values(c) or ()) for c in tried
    )


def test_a_right_implementation_runs_no_additional_trials(tried: list[str]) -> None:
    report = check_stage_backward(split, checks=[*rows_with("split", {}, 6), *rows_with("full", {}, 6)])
    assert report.summary["passed"] == report.planned
    assert tried == []


def test_a_failure_of_a_check_without_a_row_has_no_needs() -> None:
    report = check_stage_backward(FAULTS["doubled"].make(), checks=["split.gradients.mlp"])
    assert [finding["needs"] for result in report for finding in result.findings] == [None] * len(
        report.results[0].findings
    )
    assert non_default_values("split.gradients.mlp") is None


def test_a_value_that_other_values_require_is_not_reset() -> None:
    check = next(c for c, (_, row) in ROWS.items() if row["start"] == "none-first" and row["outputs"] != "tensor")
    assert reset_value(check, "outputs") is None
    assert reset_value(check, "start") is not None


def test_a_condition_is_not_printed_if_a_failure_does_without_it() -> None:
    frozen = {"needs": {"parameters": "frozen"}}
    assert needed([frozen, frozen]) == "parameters=frozen"
    assert needed([frozen, {"needs": None}]) == ""
    assert needed([frozen, {}]) == ""
    assert needed([frozen, {"needs": {}}]) == ""
