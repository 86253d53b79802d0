"""A report as XML in the form of JUnit: each check a test, each verdict as a CI system shows it."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest

from gradconform import check_stage_backward
from gradconform.report.junit import junit
from gradconform.results import Report, Result


def result(check: str, status: str, **values: object) -> Result:
    given = {"level": "MUST", "device": "cpu", "dtype": "float32", "requirement": "B MUST", "message": "", **values}
    return Result(check=check, status=status, **given)  # type: ignore[arg-type] # as a test writes them


def report_of(*results: Result, strict: bool = False) -> Report:
    made = check_stage_backward("reference-split", checks="full.gradients.mlp", strict=strict)
    return replace(made, results=list(results))


EVERY = (
    result("full.a.b", "passed", duration_s=0.25),
    result("full.a.c", "failed", kind="mismatch", message="first line\nsecond <line> \x1b[31m"),
    result("full.a.d", "failed", level="SHOULD", kind="hooks", message="told"),
    result("full.a.e", "error", kind="device", message="aten::mul is wrong"),
    result("full.a.f", "unsupported", message="not claimed: loss"),
    result("full.a.g", "waived", message="known"),
    result("full.a.h", "unexpectedly_passed"),
    result("full.a.i", "not_run"),
    result("full.a.b", "passed", dtype="float16"),
)


def read(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 (as above)


def told(text: str) -> dict[str, str]:
    found = {}
    for test in read(text).iter("testcase"):
        found[f"{test.get('classname')}.{test.get('name')}"] = test[0].tag if len(test) else "passed"
    return found


def test_each_check_is_a_test_in_a_suite_of_its_device_and_dtype() -> None:
    text = junit(report_of(*EVERY))
    assert told(text) == {
        "gradconform.full.a.b[cpu-float32]": "passed",
        "gradconform.full.a.c[cpu-float32]": "failure",
        "gradconform.full.a.d[cpu-float32]": "skipped",
        "gradconform.full.a.e[cpu-float32]": "error",
        "gradconform.full.a.f[cpu-float32]": "skipped",
        "gradconform.full.a.g[cpu-float32]": "skipped",
        "gradconform.full.a.h[cpu-float32]": "passed",
        "gradconform.full.a.i[cpu-float32]": "skipped",
        "gradconform.full.a.b[cpu-float16]": "passed",
    }
    whole = read(text)
    assert [whole.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["9", "1", "1", "4"]
    suites = [(one.get("name"), one.get("tests"), one.get("time")) for one in whole]
    assert suites == [("cpu float32", "8", "0.250"), ("cpu float16", "1", "0.000")]
    failure = next(whole.iter("failure"))
    assert (failure.get("type"), failure.get("message")) == ("mismatch", "failed: first line")
    assert failure.text == "B MUST\nfirst line\nsecond <line> \\x1b[31m"


@pytest.mark.parametrize(("check", "tag"), [("a.d", "failure"), ("a.h", "failure")])
def test_under_strict_deciding_checks_are_failures(check: str, tag: str) -> None:
    assert told(junit(report_of(*EVERY, strict=True)))[f"gradconform.full.{check}[cpu-float32]"] == tag


def test_without_failures_the_verdict_is_a_property() -> None:
    whole = read(junit(report_of(EVERY[0])))
    (verdict,) = whole.iter("property")
    assert "incomplete, no verdict" in str(verdict.get("value"))
