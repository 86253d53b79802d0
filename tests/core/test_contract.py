"""The contract as a whole: what its checks ask for is something that an adapter can claim."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gradconform import contract
from gradconform.adapter import Capabilities

CHECKS = contract.checks_of()

NEEDS = sorted({need for check in CHECKS.values() for need in check.needs})


@pytest.mark.parametrize("need", NEEDS)
def test_every_need_of_a_check_is_a_capability(need: str) -> None:
    name = need.partition("=")[0].removesuffix("!")
    assert name in {field.name for field in fields(Capabilities)}
    assert Capabilities().unclaimed([need]) in ([], [need])


def test_nearly_all_checks_apply_to_the_claims_of_plain_autograd() -> None:
    claims = Capabilities(param_groups=True, weight_result=True, edge_roots=True, lists=True, grad_dtype=True)
    asked = [check for check in CHECKS.values() if not check.unmet(claims)]
    assert len(asked) > 0.95 * len(CHECKS)
