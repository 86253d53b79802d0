"""Results and the report: counts, verdict and exit code of every combination, and JSON that any reader takes."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from expecttest import assert_expected_inline

from gradconform.devices.environment import environment
from gradconform.files.records import as_result
from gradconform.results import STATUSES, NonConformingError, Report, Result, finite

ENVIRONMENT = environment()


def result(status: str = "passed", level: str = "MUST", kind: str | None = None, **options: Any) -> Result:
    values: dict[str, Any] = {
        "check": "full.gradients.mlp",
        "level": level,
        "device": "cpu",
        "dtype": "float32",
        "status": status,
        "requirement": "B MUST be right.",
        "kind": kind,
    }
    return Result(**{**values, **options})


def report(*results: Result, manifest: int | None = None, planned: int | None = None, strict: bool = False) -> Report:
    named = [
        one
        if one.check != "full.gradients.mlp"
        else Result.from_dict({**one.to_dict(), "check": f"full.gradients.s{index}"})
        for index, one in enumerate(results)
    ]
    planned = len(named) if planned is None else planned
    return Report(
        profile="standard",
        target={"text": "mine", "name": "mine", "version": None, "file": None, "sha256": None},
        environment=ENVIRONMENT,
        seed=20,
        manifest=planned if manifest is None else manifest,
        planned=planned,
        strict=strict,
        results=named,
    )


PASSED = result()
FAILED = result("failed", kind="mismatch")
SHOULD = result("failed", "SHOULD", kind="hooks")
KIT = result("error", kind="kit")
ADAPTER = result("error", kind="adapter")
PLACE = result("error", kind="environment")
WAIVER = {
    "check": "full.*",
    "verdict": ["mismatch"],
    "reason": "old",
    "issue": "7",
    "owner": "me",
    "expires": "2027-01-01",
}
WAIVED = result("waived", kind="mismatch", waiver=WAIVER)
WAIVED_SHOULD = result("waived", "SHOULD", kind="hooks", waiver=WAIVER)
UNEXPECTED = result("unexpectedly_passed", waiver=WAIVER)
UNSUPPORTED = result("unsupported")
NOT_RUN = result("not_run")

VERDICTS: list[tuple[str, Report, str, int]] = [
    ("all passed", report(PASSED, PASSED), "conforms", 0),
    ("passed, a quarter unsupported", report(PASSED, PASSED, PASSED, UNSUPPORTED), "conforms in part", 0),
    ("passed, too much unsupported", report(PASSED, PASSED, UNSUPPORTED), "incomplete", 5),
    ("passed, an option not had", report(PASSED, result("unsupported", unclaimed=("param_groups",))), "conforms", 0),
    ("full only", report(PASSED, result("unsupported", unclaimed=("split",))), "conforms in part", 0),
    (
        "no way",
        report(result("unsupported", unclaimed=("full",)), result("unsupported", unclaimed=("split",))),
        "incomplete",
        5,
    ),
    (
        "an area without a MUST that passed",
        report(PASSED, PASSED, PASSED, result("waived", kind="mismatch", waiver=WAIVER, check="other.b.c")),
        "incomplete",
        5,
    ),
    (
        "the core is withheld",
        report(*[PASSED] * 9, result("unsupported", core=True, unclaimed=("loss",))),
        "incomplete",
        5,
    ),
    (
        "the core is waived",
        report(*[PASSED] * 9, result("waived", kind="mismatch", waiver=WAIVER, core=True)),
        "incomplete",
        5,
    ),
    ("the core passed", report(result(core=True), PASSED), "conforms", 0),
    ("withheld, and a MUST waived", report(*[PASSED] * 9, WAIVED, UNSUPPORTED), "conforms in part with waivers", 0),
    (
        "an option not had, and wrong without an error",
        report(PASSED, result("failed", "SHOULD", kind="mismatch", unclaimed=("param_groups",))),
        "conforms",
        0,
    ),
    ("a SHOULD failed", report(PASSED, SHOULD), "conforms", 0),
    ("a SHOULD failed, strict", report(PASSED, SHOULD, strict=True), "does not conform", 1),
    ("a MUST failed", report(PASSED, FAILED), "does not conform", 1),
    ("a MUST failed of a selection", report(FAILED, manifest=9), "does not conform", 1),
    ("the adapter", report(PASSED, ADAPTER), "incomplete", 7),
    ("the kit", report(PASSED, KIT), "incomplete", 3),
    ("the kit and a failure", report(FAILED, KIT), "does not conform", 3),
    ("the kit and the adapter", report(ADAPTER, KIT), "incomplete", 3),
    ("the environment", report(PASSED, PLACE), "incomplete", 4),
    ("the environment and a failure", report(FAILED, PLACE), "does not conform", 1),
    ("the environment and the adapter", report(ADAPTER, PLACE), "incomplete", 7),
    ("a MUST was waived", report(PASSED, WAIVED), "conforms with waivers", 0),
    ("a SHOULD was waived", report(PASSED, WAIVED_SHOULD), "conforms", 0),
    ("a SHOULD was waived, strict", report(PASSED, WAIVED_SHOULD, strict=True), "conforms with waivers", 0),
    ("one waived, one failed", report(FAILED, WAIVED), "does not conform", 1),
    ("one waived of a selection", report(WAIVED, manifest=9), "incomplete", 5),
    ("a waived check passed", report(PASSED, UNEXPECTED), "conforms", 0),
    ("a waived check passed, strict", report(PASSED, UNEXPECTED, strict=True), "does not conform", 1),
    ("nothing", report(manifest=0, planned=0), "incomplete", 5),
    ("no result", report(planned=3), "incomplete", 5),
    ("a result is missing", report(PASSED, planned=2), "incomplete", 5),
    ("one is said not to have run", report(PASSED, NOT_RUN), "incomplete", 5),
    ("a selection", report(PASSED, manifest=9), "incomplete", 5),
    ("all unsupported", report(UNSUPPORTED, UNSUPPORTED), "incomplete", 5),
    ("one reported twice", report(result(check="a.b.c"), result(check="a.b.c"), planned=2), "incomplete", 5),
]


@pytest.mark.parametrize(("made", "verdict", "code"), [row[1:] for row in VERDICTS], ids=[row[0] for row in VERDICTS])
def test_a_report_has_one_verdict_and_exit_code(made: Report, verdict: str, code: int) -> None:
    assert (made.verdict, made.exit_code) == (verdict, code)
    assert made.conforms == (verdict == "conforms")


@pytest.mark.parametrize("strict", [False, True])
def test_only_a_conforming_verdict_has_exit_code_zero(*, strict: bool) -> None:
    statuses = (PASSED, FAILED, SHOULD, WAIVED, UNEXPECTED, KIT, ADAPTER, PLACE, UNSUPPORTED, NOT_RUN)
    for parts in itertools.product(statuses, repeat=2):
        made = report(*parts, strict=strict)
        case = " and ".join(f"{one.status} {one.level} {one.kind}" for one in parts)
        assert (made.exit_code == 0) == made.verdict.startswith("conforms"), case
        assert made.conforms == (made.verdict == "conforms"), case
        if made.exit_code == 0:
            made.raise_if_failed()
        if made.conforms:
            told_aside = {"passed", "unsupported", "unexpectedly_passed"}
            assert all(one.status in told_aside or one.level == "SHOULD" for one in parts), case


def test_the_summary_counts_every_status_once() -> None:
    made = report(PASSED, PASSED, FAILED, SHOULD, KIT, UNSUPPORTED, planned=9, manifest=12)
    assert made.summary == {
        "manifest": 12,
        "planned": 9,
        "ran": 4,
        "passed": 2,
        "failed": 2,
        "waived": 0,
        "unexpectedly_passed": 0,
        "unsupported": 1,
        "not_run": 3,
        "error": 1,
        "failed_should": 1,
    }
    assert set(STATUSES) <= set(made.summary)


def test_failures_are_sorted_with_deciding_ones_first() -> None:
    should, must = result("failed", "SHOULD", check="a.b.c"), result("failed", check="z.b.c")
    assert report(should, PASSED, must).failures == [must, should]


def test_every_failure_is_raised_in_one_message() -> None:
    made = report(
        result("failed", check="full.a.b", message="input 0, after B0: wrong"),
        PASSED,
        result("failed", "SHOULD", check="hooks.a.b", message="never fired"),
        result("error", check="full.c.d", kind="kit", message="the kit failed"),
    )
    with pytest.raises(NonConformingError) as raised:
        made.raise_if_failed()
    assert_expected_inline(
        str(raised.value),
        """\
mine does not conform, by 2 checks:
full.a.b: input 0, after B0: wrong
full.c.d: the kit failed""",
    )


def test_a_failed_should_raises_only_if_the_run_is_strict() -> None:
    report(PASSED, SHOULD).raise_if_failed()
    with pytest.raises(NonConformingError, match="mine does not conform, by 1 check"):
        report(PASSED, SHOULD, strict=True).raise_if_failed()


def test_a_report_without_judged_checks_raises() -> None:
    unsupported = result("unsupported", check="full.a.b", message="not claimed: full")
    with pytest.raises(NonConformingError) as raised:
        report(unsupported).raise_if_failed()
    assert_expected_inline(
        str(raised.value), """0 of 1 checks were judged on mine; the first: full.a.b: not claimed: full"""
    )


@pytest.mark.parametrize(
    "made",
    [report(PASSED, planned=2), report(PASSED, NOT_RUN), report(planned=0)],
    ids=["missing", "not run", "empty"],
)
def test_a_report_with_a_missing_result_raises(made: Report) -> None:
    with pytest.raises(NonConformingError, match="checks were judged on mine"):
        made.raise_if_failed()


def test_a_selection_that_passed_raises_nothing() -> None:
    report(PASSED, UNSUPPORTED, manifest=100).raise_if_failed()


def test_the_report_is_json_with_the_fields_of_the_schema() -> None:
    values = json.loads(report(PASSED, FAILED, manifest=4).to_json())
    assert (values["schema"], values["schema_version"], values["contract"]) == ("gradconform-report", 1, "1.3")
    assert set(values["summary"]) >= {"planned", "ran", "passed", "failed", "unsupported", "error"}
    assert {"profile", "target", "environment", "results"} <= set(values)
    assert set(values["results"][0]) >= {
        "check", "level", "device", "dtype", "status", "message", "headroom", "duration_s",
    }  # fmt: skip
    assert not values["conforms"]
    assert values["verdict"] == "does not conform"


def test_a_nan_cannot_be_written_as_json() -> None:
    with pytest.raises(ValueError, match="Out of range float values"):
        report(result(error_ratio=math.nan)).to_json()


@pytest.mark.parametrize(
    ("value", "held"),
    [
        (None, None),
        (math.nan, None),
        (1.5, 1.5),
        (math.inf, 1.7976931348623157e308),
        (-math.inf, -1.7976931348623157e308),
    ],
    ids=str,
)
def test_a_number_is_stored_as_json_can_represent_it(value: float | None, held: float | None) -> None:
    assert finite(value) == held


def test_a_written_result_is_read_back_unchanged() -> None:
    given = result("failed", kind="mismatch", error_ratio=3.5, bit_equal=False, findings=({"where": "input 0"},))
    assert Result.from_dict(json.loads(json.dumps(given.to_dict()))) == given


def test_iterating_a_report_gives_its_results_in_order() -> None:
    made = report(PASSED, FAILED)
    assert list(made) == made.results


@pytest.mark.parametrize("ratio", [1.0000001, 1.7e6, math.inf])
@pytest.mark.parametrize("status", ["passed", "unexpectedly_passed"])
def test_a_passed_result_with_an_error_above_its_bound_is_an_error_of_the_kit(status: str, ratio: float) -> None:
    waiver = WAIVER if status == "unexpectedly_passed" else None
    found = result(status, error_ratio=ratio, waiver=waiver)
    assert (found.status, found.kind, found.waiver, found.error_ratio) == ("error", "kit", None, ratio)
    assert f"expected at most 1, got {ratio:.3g}; " in found.message
    assert report(PASSED, found).exit_code == 3


def test_a_received_passed_result_with_an_error_above_its_bound_is_an_error_of_the_kit() -> None:
    found = as_result({"record": "result", **result().to_dict(), "headroom": 1.7e6})
    assert (found.status, found.kind) == ("error", "kit")


@pytest.mark.parametrize("status", ["failed", "waived", "unsupported", "error"])
def test_a_result_that_did_not_pass_has_any_error(status: str) -> None:
    assert result(status, error_ratio=7.0).status == status
    assert result(error_ratio=1.0).status == "passed"
