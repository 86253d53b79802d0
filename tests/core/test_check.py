"""Checks: a clause is read from a docstring, and one that says too little is refused when it is registered."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gradconform import contract
from gradconform.adapter import Capabilities
from gradconform.contract import check as check_module
from gradconform.contract.check import Check, Judge, family
from gradconform.fixtures.stages import ZOO
from gradconform.judge import gradients
from gradconform.trial.trial import Trial
from gradconform.user_input.values import PROFILES

CHECKS = contract.checks_of()

MLP = Trial(stages=(ZOO["mlp"],), program="F0 B0")
SPLIT = Trial(stages=(ZOO["mlp"],), program="F0 I0 W0")

CLAUSE = """B MUST be right on {stage}, in {program},
    for {case} and {grads}.

    It goes wrong
    in practice.

    Catches: a thing
    that is wrong.
    """


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, Check]:
    """Let each test register into a dict of its own."""
    found: dict[str, Check] = {}
    monkeypatch.setattr(check_module, "_CHECKS", found)
    return found


def register(docstring: str | None = CLAUSE, topic: str = "full.topic", cases: Any = None, **options: Any) -> None:
    def clause() -> Judge:
        return gradients

    clause.__doc__ = docstring
    family(topic, {"one-case": MLP} if cases is None else cases, **options)(clause)


def test_a_clause_becomes_requirement_reason_and_catches(registered: dict[str, Check]) -> None:
    register(seed="test_stage_backward")
    (found,) = registered.values()
    assert found.id == "full.topic.one-case"
    assert found.area == "full"
    assert found.requirement.startswith("B MUST be right on ")
    assert found.requirement.endswith(", in F0 B0, for one case and normal values.")
    assert found.why == "It goes wrong in practice."
    assert found.catches == "a thing that is wrong."
    assert found.seed == "test_stage_backward"
    assert found.profile == "standard"
    assert found.source == f"{__name__}:register.<locals>.clause"


def test_needs_are_taken_from_the_trials_and_can_be_added_or_removed(registered: dict[str, Check]) -> None:
    register(cases={"both": (MLP, SPLIT)}, needs=("hooks=with_grad",), without=("mid_stage",))
    assert registered["full.topic.both"].needs == (MLP.needs | SPLIT.needs | {"hooks=with_grad"}) - {"mid_stage"}
    assert {"full", "split"} <= registered["full.topic.both"].needs
    assert "mid_stage" not in registered["full.topic.both"].needs


def test_the_seed_suite_row_can_be_set_per_case(registered: dict[str, Check]) -> None:
    register(cases={"a": MLP, "b": MLP}, profile="full", seed={"b": "test_b"})
    assert [(found.profile, found.seed) for found in registered.values()] == [("full", None), ("full", "test_b")]


def test_a_duplicate_check_id_is_refused() -> None:
    register()
    with pytest.raises(ValueError, match=r"the check id 'full.topic.one-case' is taken; choose another"):
        register()


@pytest.mark.parametrize(
    ("docstring", "level"),
    [
        (None, "MUST"),
        ("B MUST be right.", "MUST"),
        ("B MUST be right.\n\nIt matters.", "MUST"),
        ("B MUST be right.\n\nCatches: a thing.", "MUST"),
        ("B is right.\n\nIt matters.\n\nCatches: a thing.", "MUST"),
        ("B is right.\n\nIt MUST matter.\n\nCatches: a thing.", "MUST"),
        ("B MUST be right.\n\nIt matters.\n\nCatches: a thing.", "SHOULD"),
        ("B MUST be right.\n\nIt matters.\n\nCatches: a thing.\n\nCatches: another.", "MUST"),
    ],
    ids=["none", "line", "no catches", "no reason", "no level", "level elsewhere", "other level", "catches twice"],
)
def test_an_incomplete_clause_is_refused(docstring: str | None, level: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"a clause needs {level} in line 1, a reason, and one paragraph 'Catches: …'"
    ):
        register(docstring, level=level)


@pytest.mark.parametrize(
    ("needs", "unmet"),
    [
        ({"full", "split"}, []),
        ({"none_output_grad", "param_groups"}, ["none_output_grad", "param_groups"]),
        ({"weight_order=any"}, []),
        ({"backward_order=fifo"}, ["backward_order=fifo"]),
        ({"weight_order!=none"}, []),
        ({"weight_order!=any"}, ["weight_order!=any"]),
        ({"hooks=with_grad", "hooks=never"}, ["hooks=never"]),
    ],
    ids=lambda value: "+".join(sorted(value)) if isinstance(value, set) else None,
)
def test_an_unclaimed_need_is_unmet(registered: dict[str, Check], needs: set[str], unmet: list[str]) -> None:
    register()
    found = registered["full.topic.one-case"]
    assert Check(**{**_values(found), "needs": frozenset(needs)}).unmet(Capabilities()) == unmet


def _values(check: Check) -> dict[str, Any]:
    return {name: getattr(check, name) for name in Check.__dataclass_fields__}


def test_check_ids_are_sorted_and_name_no_dtype_or_device() -> None:
    assert list(CHECKS) == sorted(CHECKS)
    assert all(name == check.id for name, check in CHECKS.items())
    for name in CHECKS:
        assert re.fullmatch(r"[a-z_]+\.[a-z0-9_]+\.[a-z0-9-]+", name)
        assert not re.search(r"float|bf16|cpu|cuda", name)


def test_every_check_has_a_complete_clause() -> None:
    for check in CHECKS.values():
        assert check.level in check.requirement, check.id
        assert check.requirement.endswith("."), check.id
        assert not re.search(r"[{}]", check.requirement), check.id
        assert check.why, check.id
        assert check.catches, check.id
        assert check.trials, check.id
        assert check.profile in PROFILES, check.id
        assert all(trial.program for trial in check.trials), check.id
        assert isinstance(check.unmet(Capabilities()), list), check.id
