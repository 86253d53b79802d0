"""What an engine may claim of parameters that change: each of frozen, thawed and replaced, without the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gradconform import Capabilities, Report, StageSpec, check_stage_backward
from gradconform.adapter import PARAMETER_CHANGES
from gradconform.contract import checks_of
from gradconform.reference.autograd import AutogradSession
from gradconform.version import CONTRACT_VERSION

FROZEN, THAWED = "steps.frozen.between-full", "steps.frozen.thawed-in-flight-full"
REPLACED = ("steps.params.rebind-full", "steps.params.replace-full")


class HoldsParameters(AutogradSession):
    """Refuses to run once a parameter, or its memory, is not the one that ``open`` found, as a flat buffer does."""

    def __init__(self, stage: Any, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.held = self.places()

    def places(self) -> list[tuple[int, int]]:
        """Return the identity and the address of each parameter."""
        return [(id(one), one.data_ptr()) for one in self._stage.parameters()]

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        if self.places() != self.held:
            msg = "the flat buffer has other parameters"
            raise RuntimeError(msg)
        return super().forward(mb, args, target)


def judged(*, changed: Any) -> Report:
    adapter = SimpleNamespace(name="flat", capabilities={"changed_params": changed}, open=HoldsParameters)
    return check_stage_backward(adapter, checks=(FROZEN, THAWED, *REPLACED))


def statuses(report: Report) -> dict[str, str]:
    return {result.check: result.status for result in report}


def test_an_engine_claims_that_parameters_are_frozen_and_thawed_but_not_replaced() -> None:
    assert statuses(judged(changed=True)) == {FROZEN: "passed", THAWED: "passed", **dict.fromkeys(REPLACED, "failed")}
    report = judged(changed=("frozen", "thawed"))
    assert statuses(report) == {FROZEN: "passed", THAWED: "passed", **dict.fromkeys(REPLACED, "unsupported")}
    assert {result.unclaimed for result in report if result.check in REPLACED} == {("changed_params=replaced",)}


def test_a_claim_of_one_change_skips_the_checks_of_the_others() -> None:
    report = judged(changed=("thawed",))
    assert {result.check: result.unclaimed for result in report} == {
        FROZEN: ("changed_params=frozen",),  # it thaws the parameter too
        THAWED: (),
        **dict.fromkeys(REPLACED, ("changed_params=replaced",)),
    }


@pytest.mark.parametrize("nothing", [False, ()])
def test_an_engine_without_any_of_them_withholds_the_claim_as_before(nothing: Any) -> None:
    assert {result.unclaimed for result in judged(changed=nothing)} == {("changed_params",)}


def test_all_three_changes_are_the_whole_claim() -> None:
    some, every = Capabilities(changed_params=PARAMETER_CHANGES), Capabilities()
    checks = [check for check in checks_of(CONTRACT_VERSION).values() if "changed_params" in check.needs]
    assert len(checks) > 50
    assert [check.id for check in checks if check.unmet(some) != check.unmet(every)] == []


@pytest.mark.parametrize("value", [("freeze",), "frozen", 3, ("frozen", None)])
def test_another_value_of_the_claim_is_refused_with_the_three_words(value: Any) -> None:
    with pytest.raises(ValueError, match=r"capability changed_params: expected True, False or some of \('frozen', "):
        Capabilities(changed_params=value)
