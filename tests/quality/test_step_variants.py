"""Right runtimes of training steps that differ from the kit's own: no check accuses one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradconform.pipeline.training_step.composition import step_cases, unclaimed_values
from gradconform.reference.variants.training_step import STEP_VARIANTS, StepVariant
from gradconform.results import Result

from .step_runs import check_of, judged

MODULE = "gradconform.reference.variants.training_step"
#: How often the nightly test runs what must be clean.
ROUNDS = 20


def target_of(variant: StepVariant) -> str:
    """Return the target that a variant is."""
    return f"{MODULE}:{variant.name.replace('-', '_')}"


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Every variant on the checks that meet it, with the same processes."""
    cases = [
        replace(check_of(check), id=f"{variant.name} {check}", target=target_of(variant))
        for variant in STEP_VARIANTS.values()
        for check in variant.checks
    ]
    return judged(cases, "reference-runtime")


def test_there_are_at_least_twenty_different_step_variants() -> None:
    assert len(STEP_VARIANTS) >= 20
    assert len({variant.what for variant in STEP_VARIANTS.values()}) == len(STEP_VARIANTS)


@pytest.mark.slow
@pytest.mark.parametrize("variant", STEP_VARIANTS.values(), ids=lambda variant: variant.name)
def test_a_right_variant_of_a_step_passes(variant: StepVariant, results: dict[str, Result]) -> None:
    own = {check: results[f"{variant.name} {check}"] for check in variant.checks}
    assert {check: one.message for check, one in own.items() if one.status != "passed"} == {}
    assert own


#: One rounds its parameters as mixed precision does, so it is right there alone.
IN_ALL_STEPS = [variant for variant in STEP_VARIANTS.values() if variant.checks != ("fsdp-mixed",)]


@pytest.mark.nightly
@pytest.mark.parametrize("variant", IN_ALL_STEPS, ids=lambda variant: variant.name)
def test_a_right_variant_of_a_step_passes_profile_quick(variant: StepVariant) -> None:
    found = judged(list(step_cases("quick")), target_of(variant))
    not_passed = {check: one for check, one in found.items() if one.status != "passed"}
    assert {check: one.message for check, one in not_passed.items() if one.status != "unsupported"} == {}
    assert set(not_passed) == {case.id for case in step_cases("quick") if unclaimed_values(case, variant.claims)}
    assert len(found) == len(step_cases("quick"))


@pytest.mark.nightly
@pytest.mark.parametrize(("target", "profile"), [("reference-runtime", "standard"), ("torch", "quick")])
def test_repeated_runs_give_the_same_verdicts(target: str, profile: str) -> None:
    first: dict[str, str] = {}
    for number in range(ROUNDS):
        found = judged(list(step_cases(profile)), target)
        first = first or {check: one.status for check, one in found.items()}
        assert {check: one.status for check, one in found.items()} == first, f"round {number + 1}"
    assert "passed" in first.values()
    assert target == "torch" or set(first.values()) == {"passed"}
