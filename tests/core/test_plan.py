"""The plan: which checks a run does, out of how many, and what is refused before anything runs."""

from __future__ import annotations

import pytest
from expecttest import assert_expected_inline

from gradconform import contract
from gradconform.contract.check import Check
from gradconform.contract.plan import make_plan
from gradconform.user_input.values import PROFILES, Profile, SelectionError


def check(name: str, profile: Profile) -> Check:
    return Check(
        id=name,
        level="MUST",
        profile=profile,
        requirement="",
        why="",
        catches="",
        trials=(),
        judge=lambda _: iter(()),
        needs=frozenset(),
        source="",
    )


FOUR = {
    one.id: one
    for one in (
        check("full.gradients.mlp", "quick"),
        check("full.loss.mlp", "standard"),
        check("split.gradients.conv", "standard"),
        check("split.seed_size.mlp", "full"),
    )
}


def ids(**options: object) -> list[str]:
    return [item.check.id for item in make_plan(FOUR, **options).items]  # type: ignore[arg-type] # each test gives its own options


def test_each_profile_contains_the_smaller_ones() -> None:
    chosen = [set(ids(profile=profile)) for profile in PROFILES]
    assert [len(names) for names in chosen] == [1, 3, 4]
    assert chosen[0] < chosen[1] < chosen[2]


def test_the_contract_profiles_are_nested_and_not_empty() -> None:
    checks = contract.checks_of()
    chosen = [{item.check.id for item in make_plan(checks, profile=profile).items} for profile in PROFILES]
    assert set() < chosen[0] < chosen[1] < chosen[2]
    assert chosen[2] == set(checks)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include": ["full.*"]}, ["full.gradients.mlp", "full.loss.mlp"]),
        ({"include": ["*.mlp", "split.*"]}, ["full.gradients.mlp", "full.loss.mlp", "split.gradients.conv"]),
        ({"include": ["full.gradients.mlp"]}, ["full.gradients.mlp"]),
        ({"include": ["full.l?ss.mlp"]}, ["full.loss.mlp"]),
        ({"include": ["full.[gl]*"], "exclude": ["*.loss.*"]}, ["full.gradients.mlp"]),
        ({"exclude": ["full.*"]}, ["split.gradients.conv"]),
    ],
    ids=["area", "two globs", "whole id", "question mark", "with exclude", "exclude alone"],
)
def test_globs_include_and_exclude_checks_in_contract_order(options: dict[str, list[str]], expected: list[str]) -> None:
    assert ids(**options) == expected


def test_the_manifest_counts_the_profile_not_the_selection() -> None:
    cells = [(device, dtype) for device in ("cpu", "meta") for dtype in ("float32", "float64", "bfloat16")]
    plan = make_plan(FOUR, include=["full.*"], cells=cells)
    assert plan.manifest == 3 * 6
    assert len(plan.items) == 2 * 6
    assert plan.profile == "standard"
    assert len({item.name for item in plan.items}) == 12


def test_an_item_is_named_by_check_device_and_dtype() -> None:
    assert make_plan(FOUR, profile="quick").items[0].name == "full.gradients.mlp[cpu-float32]"


def refusal(**options: object) -> str:
    with pytest.raises(SelectionError) as raised:
        ids(**options)
    return str(raised.value)


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    assert_expected_inline(
        refusal(profile="Full"),
        """unknown profile 'Full' (did you mean full?); expected one of quick, standard, full""",
    )


def test_an_unmatched_pattern_is_refused_with_the_nearest_ids() -> None:
    assert_expected_inline(
        refusal(include=["full.gradient.mlp"]),
        """check pattern 'full.gradient.mlp' matches no check; nearest: full.gradients.mlp, full.loss.mlp, split.gradients.conv""",  # noqa: E501 (as it is shown)
    )


def test_an_unmatched_exclude_pattern_is_refused_with_the_nearest_ids() -> None:
    assert refusal(exclude=["ful.*"]).startswith("check pattern 'ful.*' matches no check; nearest: ")


def test_a_pattern_of_a_larger_profile_names_that_profile() -> None:
    assert_expected_inline(
        refusal(include=["*.seed_size.*"]),
        """check pattern '*.seed_size.*' matches no check of profile standard; use profile full""",
    )


def test_one_bad_pattern_among_good_ones_is_refused() -> None:
    assert "'nothing.*'" in refusal(include=["full.*", "nothing.*"])


def test_a_selection_that_excludes_every_check_is_refused() -> None:
    assert_expected_inline(
        refusal(include=["full.*"], exclude=["full.*"]),
        """the selection excludes all 3 checks: include=['full.*'], exclude=['full.*']; change one of them""",
    )


def test_a_plan_without_devices_or_dtypes_is_refused() -> None:
    assert refusal(cells=[]) == "no device or no dtype is given; name at least one of each"
