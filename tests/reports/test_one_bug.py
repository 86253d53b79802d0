"""A run with one bug reports one cause on a screen; a second bug and what is left over keep causes of their own."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gradconform import check_stage_backward
from gradconform.reading.comparison import Expression, compare
from gradconform.reading.report import read_report
from gradconform.report.by_cause import FailureGroup
from gradconform.report.comparison import comparison_lines
from gradconform.report.concise import github_annotations
from gradconform.report.page.pages import report_page
from gradconform.report.sections import sections
from gradconform.report.sentences import verdict
from gradconform.report.terminal import closing, opening, tally_line
from gradconform.results import Report

_CHECKS = ("accumulate.*", "grad_tuple.none*", "split.gradients.m*", "split.gradients.t*", "steps.*split*")
_BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "one_line_bugs.py"

#: A run of all areas has so many lines on them: the reports here are of some areas alone.
_AREAS = 16


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("one_line_bugs", _BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_BUGS = {bug.name: bug for bug in _benchmark().BUGS}

Judge = Callable[..., Report]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """Return what reports on a module with some of the bugs, each once."""
    known: dict[tuple[tuple[str, ...], Sequence[str]], Report] = {}

    def report(*names: str, checks: Sequence[str] = _CHECKS) -> Report:
        if (names, checks) not in known:
            source = _BUGS[names[0]].source()
            for name in names[1:]:
                source = _BUGS[name].into(source)
            file = tmp_path_factory.mktemp("bugs") / "backward.py"
            file.write_text(source, encoding="utf-8")
            known[names, checks] = check_stage_backward(str(file), checks=checks)
        return known[names, checks]

    return report


def causes(report: Report) -> list[FailureGroup]:
    """Return all causes of what failed."""
    return [cause for section in sections(report) if section.heading.startswith("failed") for cause in section.causes]


def as_examined(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an explanation as if its mistake had been tried on the check itself."""
    return {name: value for name, value in entry.items() if name != "verified_on"}


def without_undoing(report: Report) -> Report:
    """Return the report as an older kit would have written it."""
    return replace(report, results=[replace(result, undone=()) for result in report])


@pytest.mark.parametrize(
    ("bug", "mistake"),
    [
        ("keeps-first", "W adds nothing to existing parameter gradients"),
        ("doubles-w", "in W, gradients are multiplied by 2"),
        ("first-output", "in I and W, only the first output's gradient counts"),
    ],
)
def test_one_bug_is_one_cause_within_forty_lines(judged: Judge, bug: str, mistake: str) -> None:
    report = judged(bug)
    assert len(causes(without_undoing(report))) > 1
    (cause,) = causes(report)
    assert cause.likely == mistake
    assert set(cause.checks) == {result.check for result in report.failures if result.level == "MUST"}
    lines = [*opening(report, [("cpu", "float32")], 80), *([tally_line("area", report.results, 1)] * _AREAS)]
    assert len([*lines, *closing(report, 80)]) <= 40


def test_reversed_gradients_also_explain_missing_and_misshaped_ones(judged: Judge) -> None:
    report = judged(
        "reverses-inputs", checks=("split.loss.integer-input", "split.gradients.*input*", "accumulate.reused_input.*")
    )
    assert {"missing", "unexpected", "shape"} <= {one["kind"] for result in report for one in result.findings}
    (cause,) = causes(report)
    assert cause.likely == "in I, the input gradients are returned in reverse order"


def test_a_comparison_and_annotations_report_one_bug_once(judged: Judge, tmp_path: Path) -> None:
    report = judged("reverses-inputs", checks=("split.loss.integer-input", "accumulate.reused_input.*"))
    right = [replace(one, status="passed", kind=None, findings=(), undone=()) for one in report]
    lines = list(
        map(str, comparison_lines(compare(replace(report, results=right), report), Expression.parse("failures"), 80))
    )
    assert [line for line in lines if line.startswith("  [")] == [
        "  [1] 2 checks: after I, an input gradient has a wrong shape; likely cause: in"
    ]
    assert len([line for line in github_annotations(report, tmp_path) if "title=gradconform " in line]) == 1


def test_a_bug_is_reported_with_the_symptom_of_its_smallest_check(judged: Judge) -> None:
    (cause,) = causes(judged("reverses-inputs", checks=("split.loss.integer-input", "accumulate.reused_input.*")))
    assert cause.smallest.check == "accumulate.reused_input.two-inputs-split"
    assert cause.smallest.findings[0]["kind"] == "shape"
    assert cause.symptom == "after I, an input gradient has a wrong shape"


def test_the_smallest_check_that_shows_the_bug_is_first(judged: Judge) -> None:
    (cause,) = causes(judged("keeps-first"))
    actions = {result.check: sum(len(program.split()) for program in result.programs) for result in cause.results}
    assert actions[cause.smallest.check] == min(actions.values())
    shown = [line for line in map(str, closing(judged("keeps-first"), 80)) if line.startswith("    ")]
    assert next(line for line in shown if ": program" in line).strip().startswith(cause.smallest.check)


@pytest.mark.parametrize(
    ("bugs", "mistakes"),
    [
        (
            ("doubles-w", "reverses-inputs"),
            ("in W, gradients are multiplied by 2", "in I, the input gradients are returned in reverse order"),
        ),
        # Both are in what W adds: a parameter that gets nothing is not charged to what is already there.
        (
            ("keeps-first", "drops-last"),
            ("W adds nothing to existing parameter gradients", "never accumulated"),
        ),
    ],
)
def test_two_bugs_are_two_causes(judged: Judge, bugs: tuple[str, str], mistakes: tuple[str, str]) -> None:
    assert [cause.likely for cause in causes(judged(*bugs))][:2] == [*mistakes]


def test_a_heading_counts_each_failed_should_of_the_verdict(judged: Judge) -> None:
    report = judged("keeps-first")
    explained = next(result for result in report.failures if result.undone and result is not report.failures[0])
    finding = {**report.failures[0].findings[0], "kind": "layout", "text": "expected layout a, got b", "cause": None}
    other = next(result for result in report if result.status == "passed")
    changed = {
        explained.place: replace(explained, level="SHOULD"),
        other.place: replace(other, status="failed", kind="layout", level="SHOULD", findings=(finding,)),
    }
    report = replace(report, results=[changed.get(result.place, result) for result in report])
    heading = next(one.heading for one in sections(report) if one.heading.startswith("failed SHOULD"))
    assert heading == "failed SHOULD (they decide only with --strict): 1 check, 1 more by causes above"
    assert " and 2 SHOULD failed" in verdict(report)
    first = causes(report)[0]
    assert re.fullmatch(r"fixing this probably also fixes \d+ other causes \(.* and 1 SHOULD check\)", str(first.gone))


def test_a_failure_that_the_mistake_does_not_explain_is_reported_in_full(judged: Judge) -> None:
    report = judged("keeps-first")
    other = next(result for result in report if result.status == "passed")
    finding = {**report.failures[0].findings[0], "kind": "layout", "text": "expected layout a, got b", "cause": None}
    failed = replace(other, status="failed", kind="layout", level="MUST", findings=(finding,))
    first, second = causes(replace(report, results=[failed if result is other else result for result in report]))
    assert first.likely == causes(report)[0].likely
    assert [*second.checks] == [failed.check]


def test_a_mistake_with_a_wrong_prediction_is_rejected(judged: Judge) -> None:
    mixed = [result for result in judged("keeps-first") if result.check == "accumulate.order.mixed"]
    told = {(one["mistake"]["kind"], tuple(one["mistake"]["names"])) for one in mixed[0].undone if not one["left"]}
    assert ("standing_kept", ("W",)) in told
    assert ("standing_kept", ("W", "B's parameters")) not in told


def test_a_report_says_on_how_many_failures_its_causes_were_verified(judged: Judge) -> None:
    report = judged("keeps-first")
    explained = [result for result in report if result.undone]
    verified = [one for one in explained if not any("verified_on" in entry for entry in one.undone)]
    line = f"causes verified on {len(verified)} of {len(explained)} explained failures; the others fail alike"
    assert 0 < len(verified) < len(explained)
    assert [*map(str, closing(report, 80))].count(line) == 1
    assert report_page(report).count(line) == 1
    as_tried = replace(report, results=[replace(one, undone=tuple(map(as_examined, one.undone))) for one in report])
    assert len(closing(report, 80)) == len(closing(as_tried, 80))  # a single bug gets forty lines
    alone = replace(report, results=verified)
    assert "causes verified" not in "".join(map(str, closing(alone, 80))) + report_page(alone)


def test_mistakes_are_kept_in_the_json_report(judged: Judge, tmp_path: Path) -> None:
    report = judged("keeps-first")
    path = tmp_path / "report.json"
    path.write_text(report.to_json(), encoding="utf-8")
    assert [cause.text for cause in causes(read_report(path))] == [cause.text for cause in causes(report)]


def test_failures_only_in_special_trials_are_not_a_mistake_of_every_action() -> None:
    """torch 2.13.0's W adds nothing in some checks, each for a reason of its own, and is right on a plain stage."""
    report = check_stage_backward("torch", checks=("hooks.altered.move-mlp-split", "split.gradients.t*"))
    if not report.failures:
        pytest.skip("this torch is right there")
    assert all("nothing_added" not in {one["mistake"]["kind"] for one in result.undone} for result in report)
