from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from expecttest import assert_expected_inline

from gradconform.judge.finding import Kind
from gradconform.report.by_cause import by_cause, cause
from gradconform.report.sections import sections
from gradconform.report.sentences import verdict
from gradconform.report.terminal import closing
from gradconform.results import Report, Result


def result(check: str, status: str = "passed", **values: Any) -> Result:
    usual = {"level": "MUST", "device": "cpu", "dtype": "float32", "requirement": f"It MUST do {check}."}
    return Result(**{**usual, "check": check, "status": status, **values})


def failed(check: str, where: str, text: str, **values: Any) -> Result:
    kind, action = values.pop("kind", "mismatch"), values.pop("action", "W0")
    finding = {"kind": kind, "where": where, "action": action, "text": text, "cause": None}
    finding |= {"raised": values.pop("raised", None), "sort": values.pop("sort", "parameter gradient")}
    message = f"program F0 I0 W0\n{where}, after {action}: {text}"
    return result(check, "failed", kind=kind, findings=(finding,), message=message, **values)


def report(*results: Result, manifest: int | None = None, **values: Any) -> Report:
    count = len(results) if manifest is None else manifest
    usual: dict[str, Any] = {"profile": "full", "environment": {}, "seed": 20, "manifest": count, "planned": count}
    target = {"text": "thing", "name": "thing", "version": "1.2"}
    return Report(**{**usual, "target": target, "results": list(results), **values})


WRONG = failed("a.b.c", "weight", "worst at [0]")
SHOULD = failed("a.b.d", "weight", "worst at [0]", level="SHOULD")
ERROR = result("a.b.e", "error", kind="kit", message="the kit failed: Traceback\n  line 1\nKeyError: 'x'")


@pytest.mark.parametrize(
    ("expected", "run"),
    [
        ("thing 1.2 conforms to contract 1.3 in profile full: 1 of 1 checks passed", report(result("a.b.c"))),
        (
            "thing 1.2 conforms in part to contract 1.3 in profile full: 3 of 4 checks passed; not claimed: rng",
            report(*map(result, ("a.b.c", "a.b.d", "a.b.e")), result("a.b.f", "unsupported", unclaimed=("rng",))),
        ),
        (
            (
                "thing 1.2 conforms in part to contract 1.3 in profile full: 3 of 4 checks passed; split "
                "backward not tested; 1 optional check skipped; 1 that plain autograd cannot run here"
            ),
            report(
                *map(result, ("a.b.c", "a.b.d", "a.b.e")),
                result("a.b.f", "unsupported", kind="environment"),
                result("a.b.g", "unsupported", unclaimed=("split",)),
                result("a.b.h", "unsupported", unclaimed=("param_groups",)),
            ),
        ),
        (
            "thing 1.2 conforms to contract 1.3 in profile full: 1 of 2 checks passed; 1 SHOULD failed",
            report(result("a.b.c"), SHOULD),
        ),
        ("thing 1.2 does NOT conform: 1 SHOULD failed", report(result("a.b.c"), SHOULD, strict=True)),
        ("thing 1.2 does NOT conform: 1 MUST and 1 SHOULD failed", report(WRONG, SHOULD)),
        (
            "thing 1.2 does NOT conform: 1 MUST failed; the contract was not run in full",
            report(WRONG, manifest=2),
        ),
        ("thing 1.2: incomplete, no verdict: 1 of 2 checks ran, none failed", report(result("a.b.c"), manifest=2)),
        ("thing 1.2: incomplete, no verdict: 1 of 2 checks ran; 1 SHOULD failed", report(SHOULD, manifest=2)),
        (
            (
                "thing 1.2: incomplete, no verdict: 0 of 1 checks ran, none failed; not claimed: loss; core "
                "checks did not pass on cpu float32: a.b.c; no MUST of a passed on cpu float32; "
                "1 of 1 checks are unsupported on cpu float32; and 1 more such reason"
            ),
            report(result("a.b.c", "unsupported", core=True, unclaimed=("loss",))),
        ),
        ("thing 1.2: error: kit: 1 check could not be judged; 1 MUST failed", report(WRONG, ERROR)),
    ],
)
def test_the_verdict_names_the_deciding_reason(expected: str, run: Report) -> None:
    assert verdict(run) == expected


@pytest.mark.parametrize(
    ("expected", "seen"),
    [
        ("after W, a parameter gradient has a wrong value", failed("a.b.c", "0.weight", "worst at [3]: …")),
        (
            "after I, an input gradient has a wrong value",
            failed("a.b.c", "input 1", "worst at [3]", action="I0", sort="input gradient"),
        ),
        (
            "after W, a parameter gradient is None (plain autograd: a tensor)",
            failed("a.b.c", "0.weight", "expected a tensor", kind="missing"),
        ),
        (
            "W raised KeyError: 3",
            failed(
                "a.b.c", "the action", "raised KeyError: 3; plain autograd does not", kind="error", raised="KeyError: 3"
            ),
        ),
        (
            "after I, the action raised no error; expected one",
            failed(
                "a.b.c",
                "the action",
                "raised no error; expected one",
                kind="no_error",
                action="I1!",
                sort="thing",
            ),
        ),
        ("KeyError: 'x'", ERROR),
        ("the adapter is wrong", result("a.b.c", "error", kind="adapter", message="the adapter is wrong")),
    ],
)
def test_a_cause_describes_the_failure_without_its_place(expected: str, seen: Result) -> None:
    assert cause(seen) == expected


def test_causes_that_differ_only_in_a_number_are_merged_and_the_largest_is_first() -> None:
    raised = [
        failed(f"a.b.{mb}", "the action", f"raised {error}; plain autograd does not", kind="error", raised=error)
        for mb, error in enumerate(f"IndexError: {mb} of 9" for mb in range(3))
    ]
    found = by_cause([WRONG, *raised])
    assert [(group.text, len(group.results)) for group in found] == [
        ("W raised IndexError: 0 of 9, or alike", 3),
        ("after W, a parameter gradient has a wrong value", 1),
    ]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_findings_of_the_same_kind_and_tensor_sort_are_one_cause_despite_other_text(kind: str) -> None:
    found = by_cause(failed(f"a.b.{said}", said, f"is {said}", kind=kind) for said in ("here", "there"))
    assert [(group.text.startswith("after W, a parameter gradient "), len(group.results)) for group in found] == [
        (True, 2)
    ]


@pytest.mark.parametrize(
    "other", [{"kind": "alive"}, {"action": "I0"}, {"sort": "output gradient"}, {"raised": "KeyError: 'x'"}], ids=str
)
def test_findings_with_different_values_are_two_causes_despite_equal_text(other: dict[str, str]) -> None:
    values = {"kind": "error", "action": "W0", "sort": "parameter gradient", "raised": "KeyError: 'y'"}
    found = by_cause(
        [failed("a.b.c", "weight", "is wrong", **values), failed("a.b.d", "weight", "is wrong", **{**values, **other})]
    )
    assert len(found) == 2


def both(check: str, *kinds: str, action: str = "W0") -> Result:
    """Return a result that failed with one finding of each kind, each for a reason of that name."""
    parts = [failed(check, "weight", f"is {kind}", kind=kind, action=action) for kind in kinds]
    reasons = ({"kind": kind, "text": f"it is {kind}"} for kind in kinds)
    findings = [{**part.findings[0], "cause": reason} for part, reason in zip(parts, reasons, strict=True)]
    return Result.from_dict({**parts[0].to_dict(), "findings": findings}).of_findings(findings)


def test_a_cause_with_and_without_a_reason_is_one_after_b_and_w() -> None:
    never = {"kind": "never_accumulated", "text": "never accumulated"}
    zeros = {"kind": "output_grads_zero", "text": "the output gradients are zeros"}
    why = {**never, "text": f"{never['text']}: {zeros['text']}", "why": zeros}
    causes = {"full.a": ("B0", never), "split.a": ("W0", never), "split.zeros": ("W0", why)}
    results = []
    for check, (action, found) in causes.items():
        one = failed(check, "0.bias", "expected a tensor, got None", kind="missing", action=action)
        results.append(replace(one, findings=({**one.findings[0], "cause": found},)))
    (group,) = by_cause(results)
    assert (group.symptom, group.likely) == (
        "after B or W, a parameter gradient is None (plain autograd: a tensor)",
        "never accumulated",
    )
    assert [*group.checks] == [*causes]


def test_a_check_appears_in_each_of_its_causes_with_only_their_findings() -> None:
    found = by_cause([both("a.b.c", "mismatch", "missing"), both("a.b.d", "mismatch"), both("a.b.e", "missing")])
    assert [(group.text, list(group.checks)) for group in found] == [
        ("after W, a parameter gradient has a wrong value; likely cause: it is mismatch", ["a.b.c", "a.b.d"]),
        (
            "after W, a parameter gradient is None (plain autograd: a tensor); likely cause: it is missing",
            ["a.b.c", "a.b.e"],
        ),
    ]
    assert [[finding["kind"] for finding in group.results[0].findings] for group in found] == [
        ["mismatch"],
        ["missing"],
    ]
    assert "missing" not in found[0].results[0].message


def test_different_reasons_are_different_causes_but_b_and_i_are_merged() -> None:
    one, other = both("a.b.c", "mismatch", action="B0"), both("a.b.d", "mismatch", action="I1")
    (group,) = by_cause([one, other])
    assert group.text == "after B or I, a parameter gradient has a wrong value; likely cause: it is mismatch"
    told = {**other.to_dict(), "findings": [{**other.findings[0], "cause": {"kind": "scaled", "text": "2 times"}}]}
    assert len(by_cause([one, Result.from_dict(told)])) == 2


def test_a_check_in_several_causes_is_counted_once() -> None:
    told = report(both("a.b.c", "mismatch", "missing"), both("a.b.d", "mismatch"))
    assert [section.heading for section in sections(told)] == ["failed MUST: 2 checks"]


def test_an_error_of_the_kit_is_reported_with_its_traceback_and_its_check() -> None:
    told = "\n".join(map(str, closing(report(ERROR), 80)))
    assert_expected_inline(
        told,
        """\

========================= could not be judged: 1 check =========================

[1] 1 check: KeyError: 'x'
    a.b.e
      the kit failed: Traceback
        line 1
      KeyError: 'x'
    reproduce: gradconform replay a.b.e thing

0 of 1 checks of contract 1.3, profile full, ran
thing 1.2: error: kit: 1 check could not be judged""",
    )


def test_a_failure_in_two_dtypes_is_reported_once() -> None:
    again = failed("a.b.c", "weight", "worst at [1]", dtype="float64")
    told = "\n".join(map(str, closing(report(WRONG, again), 80)))
    assert_expected_inline(
        told,
        """\

======================= failed MUST: 1 check, 2 results ========================

[1] 1 check: after W, a parameter gradient has a wrong value
    a.b.c [cpu float32, cpu float64]: program F0 I0 W0
      - weight, after W0: worst at [0]
    reproduce: gradconform replay a.b.c thing

2 of 2 checks of contract 1.3, profile full, ran
thing 1.2 does NOT conform: 2 MUST failed""",
    )
