"""Every fault of a training step is found by the check that is to find it; a right runtime is never accused."""

from __future__ import annotations

from dataclasses import replace
from itertools import filterfalse

import pytest

from gradconform.pipeline.training_step.composition import StepCase, step_cases
from gradconform.reference.faults.training_step import STEP_FAULTS, StepFault
from gradconform.results import Result

from .step_runs import CHECKS, check_of, judged

MODULE = "gradconform.reference.faults.training_step"


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Every fault on its check, with the same processes."""
    return judged(
        [
            replace(check_of(fault.check), id=name, target=f"{MODULE}:{name.replace('-', '_')}")
            for name, fault in STEP_FAULTS.items()
        ],
        "reference-runtime",
    )


def test_there_are_at_least_a_hundred_and_thirty_different_step_faults() -> None:
    assert len(STEP_FAULTS) >= 130
    assert len({fault.what for fault in STEP_FAULTS.values()}) == len(STEP_FAULTS)


@pytest.mark.parametrize("fault", STEP_FAULTS.values(), ids=lambda fault: fault.name)
def test_a_fault_is_found_with_its_own_cause(fault: StepFault, results: dict[str, Result]) -> None:
    found = results[fault.name]
    assert (found.status, found.kind == "error") == ("failed", False), found.message
    causes = {one["cause"]["kind"] for one in found.findings if one["cause"]}
    assert (fault.cause in causes) if fault.cause else True, (fault.cause, found.message)


def compiles_long(case: StepCase) -> bool:
    """Return whether its processes compile for 10 to 30 s; only nightly tests run these."""
    return case.composition.compiled == "inductor" or (case.composition.ranks == 4 and bool(case.composition.compiled))


#: Every check of profile quick, and of the others every eighth.
SOME = list(dict.fromkeys((*step_cases("quick"), *filterfalse(compiles_long, list(CHECKS.values())[::8]))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases", [SOME, pytest.param(list(CHECKS.values()), marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_the_plain_runtime_passes_every_composition(cases: list[StepCase]) -> None:
    found = judged(cases, "reference-runtime")
    told = {check: one.message for check, one in found.items() if one.status != "passed"}
    uncompiled = {check for check, text in told.items() if text.startswith("torch.compile with inductor does not work")}
    assert {check: text for check, text in told.items() if check not in uncompiled} == {}
    assert all("inductor" in CHECKS[check].row for check in uncompiled)
    assert set(found) == {case.id for case in cases}
