"""The headline of a cause says what its findings say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest

from gradconform import Report
from gradconform.reference.faults import FAULTS
from gradconform.report.by_cause import by_cause
from gradconform.results import Result

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
def test_a_headline_matches_its_finding(fault: str, checks: str, headline: str, finding: str, judge: Judge) -> None:
    report = judge(FAULTS[fault].make(), checks=(checks,))
    (cause,) = by_cause(report.failures)
    assert cause.symptom == headline
    assert {str(one["text"]).partition(",")[0] for result in cause.results for one in result.findings} == {finding}


def test_findings_on_one_and_on_two_arguments_are_one_cause(judge: Judge) -> None:
    """A plural that depends on the number would split the cause: its messages are compared without numbers."""
    nothing = SimpleNamespace(stage_backward=lambda *_: ())
    report = judge(nothing, checks=("full.gradients.mlp", "full.gradients.two-inputs"))
    (cause,) = by_cause(report.failures)
    assert list(cause.checks) == ["full.gradients.mlp", "full.gradients.two-inputs"]


def of_rank(kind: str, text: str) -> Result:
    finding = {
        "kind": kind, "where": "1.block.up.weight", "action": "act 1 (train)", "text": text, "error": None,
        "bound": None, "headroom": None, "cause": None, "raised": None, "sort": "parameter gradient", "needs": None,
    }  # fmt: skip
    return Result(
        check="step.plain", level="MUST", status="failed", device="cpu", dtype="float32", requirement="A step MUST",
        message=text, error_ratio=None, duration_s=0.0, findings=(finding,),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "text", "headline"),
    [
        (
            "unknown_name",
            "this rank has no parameter gradient with this name",
            "has a name that this rank does not have",
        ),
        ("unknown_name", "expected another text", "has a name that this rank does not have"),
        # A report of an earlier gradconform has no kind of its own for it.
        ("unexpected", "no parameter gradient of this rank has this name", "is a tensor (plain autograd: None)"),
    ],
)
def test_the_kind_of_a_finding_decides_its_headline_not_its_text(kind: str, text: str, headline: str) -> None:
    (cause,) = by_cause([of_rank(kind, text)])
    assert cause.symptom.endswith(f"a parameter gradient {headline}")


@pytest.mark.parametrize(
    ("texts", "why", "likely"),
    [
        (["scaled by 2.0", "scaled by 0.5"], [None, None], "scaled by 2.0, or alike"),
        (["never summed: it is last", "never summed: it is fixed"], ["it is last", "it is fixed"], "never summed"),
        (["receive1 wrote over it", "1receive0 wrote over it"], [None, None], "receive1 wrote over it, or alike"),
    ],
    ids=["numbers", "reasons", "details"],
)
def test_causes_of_one_kind_are_named_by_what_they_share(texts: list[str], why: list[str | None], likely: str) -> None:
    results = []
    for text, reason in zip(texts, why, strict=True):
        cause = {"kind": "scaled", "text": text, **({"why": {"kind": "last", "text": reason}} if reason else {})}
        result = of_rank("mismatch", "a value")
        results.append(replace(result, findings=({**result.findings[0], "cause": cause},)))
    (group,) = by_cause(results)
    assert group.likely == likely
