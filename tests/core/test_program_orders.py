"""The programs of fixtures/programs.py: the order that each name says, and nothing left out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradconform.fixtures import programs
from gradconform.trial.program import Action, needs, parse

WRITTEN: dict[Callable[[int], str], str] = {
    programs.full_immediate: "F0 B0 F1 B1 F2 B2",
    programs.full_all_forwards_first: "F0 F1 F2 B0 B1 B2",
    programs.full_reversed: "F0 F1 F2 B2 B1 B0",
    programs.split_immediate: "F0 I0 W0 F1 I1 W1 F2 I2 W2",
    programs.split_deferred: "F0 I0 F1 I1 F2 I2 W0 W1 W2",
    programs.split_reversed: "F0 I0 F1 I1 F2 I2 W2 W1 W0",
    programs.split_all_forwards_first: "F0 F1 F2 I0 I1 I2 W0 W1 W2",
    programs.split_input_reversed: "F0 F1 F2 I2 I1 I0 W0 W1 W2",
    programs.split_interleaved: "F0 F1 I0 F2 I1 W0 I2 W1 W2",
    programs.mixed: "F0 B0 F1 I1 F2 B2 W1",
}
ASKED: dict[Callable[[int], str], set[str]] = {
    programs.full_immediate: {"full"},
    programs.full_all_forwards_first: {"full"},
    programs.full_reversed: {"full", "backward_order=any"},
    programs.split_immediate: {"split"},
    programs.split_deferred: {"split", "weight_order!=none"},
    programs.split_reversed: {"split", "weight_order=any"},
    programs.split_all_forwards_first: {"split", "weight_order!=none"},
    programs.split_input_reversed: {"split", "backward_order=any", "weight_order=any"},
    programs.split_interleaved: {"split", "weight_order!=none"},
    programs.mixed: {"full", "split", "mixed", "weight_order!=none"},
}
ORDERS = pytest.mark.parametrize("order", WRITTEN, ids=lambda order: order.__name__)


@ORDERS
def test_three_microbatches_are_in_the_order_of_the_name(order: Callable[[int], str]) -> None:
    assert order(3) == WRITTEN[order]


@ORDERS
def test_the_needs_of_an_order_match_its_name(order: Callable[[int], str]) -> None:
    assert needs(parse(order(3))) == ASKED[order]


@ORDERS
@settings(max_examples=20)
@given(n=st.integers(1, 12))
def test_every_microbatch_runs_forward_once_and_backward_once(order: Callable[[int], str], n: int) -> None:
    actions = parse(order(n))
    for mb in range(n):
        own = [action.kind for action in actions if action.mb == mb]
        assert own in (["F", "B"], ["F", "I", "W"])
    assert {action.mb for action in actions} == set(range(n))


def test_every_order_of_the_module_is_tested() -> None:
    own = {
        name: value for name, value in vars(programs).items() if getattr(value, "__module__", "") == programs.__name__
    }
    public = {value for name, value in own.items() if not name.startswith("_")}
    assert public == set(WRITTEN) == set(ASKED)


def test_mixed_runs_full_backward_for_even_microbatches_only() -> None:
    kinds = {(action.kind, action.mb % 2) for action in parse(programs.mixed(6))}
    assert kinds == {("F", 0), ("F", 1), ("B", 0), ("I", 1), ("W", 1)}
    assert Action("W", 5) in parse(programs.mixed(6))
