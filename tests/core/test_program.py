"""Programs: what is read is what is written, what is asked of an implementation, what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradconform.trial.program import Action, ProgramError, microbatches, needs, parse, write

WITH_MICROBATCH = st.builds(
    Action,
    kind=st.sampled_from(["F", "B", "I", "W", "G", "drop"]),
    mb=st.integers(0, 300),
    stage=st.integers(0, 3),
    misuse=st.booleans(),
)
ENDS = st.builds(Action, kind=st.just("finish"), stage=st.integers(0, 3), misuse=st.booleans())
ZEROES = st.sampled_from([Action("zero_none"), Action("zero_fill")])


@given(st.lists(st.one_of(WITH_MICROBATCH, ENDS, ZEROES)).map(tuple))
def test_a_written_program_is_parsed_to_the_same_actions(actions: tuple[Action, ...]) -> None:
    assert parse(write(actions)) == actions


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("F0", Action("F", 0)),
        ("I12", Action("I", 12)),
        ("2W7", Action("W", 7, stage=2)),
        ("W1!", Action("W", 1, misuse=True)),
        ("G3", Action("G", 3)),
        ("drop3", Action("drop", 3)),
        ("send3", Action("send", 3)),
        ("1drop0", Action("drop", 0, stage=1)),
        ("zero_none", Action("zero_none")),
        ("zero_fill", Action("zero_fill")),
        ("reopen", Action("reopen")),
        ("finish", Action("finish")),
        ("1finish!", Action("finish", stage=1, misuse=True)),
    ],
)
def test_a_token_is_one_action(text: str, action: Action) -> None:
    assert parse(text) == (action,)
    assert str(action) == text


def test_white_space_of_any_kind_separates_actions() -> None:
    assert parse("  F0\n\tB0 ") == (Action("F", 0), Action("B", 0))


@pytest.mark.parametrize(
    ("text", "position", "token"),
    [
        ("F", 1, "F"),
        ("F0 X1", 2, "X1"),
        ("F0 b0", 2, "b0"),
        ("F0 B0 W!0", 3, "W!0"),
        ("F-1", 1, "F-1"),
        ("F0,B0", 1, "F0,B0"),
        ("zero", 1, "zero"),
        ("zero_none!", 1, "zero_none!"),
        ("finish0", 1, "finish0"),
    ],
)
def test_an_invalid_token_is_named_with_its_position(text: str, position: int, token: str) -> None:
    with pytest.raises(ProgramError) as raised:
        parse(text)
    assert str(raised.value) == (
        f"token {position} of the program is {token!r}; expected an action such as F0, I1, W1, zero_none or finish"
    )


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("F0", set()),
        ("F0 B0", {"full"}),
        ("F0 I0 W0", {"split"}),
        ("F0 I0", {"split"}),
        ("F0 B0 F1 I1 W1", {"full", "split", "mixed"}),
        ("F0 G0 W0", {"split", "param_groups"}),
        ("F0 send0 B0", {"full", "edge_roots"}),
        ("F0 F1 G0 G1 W0 W1", {"split", "param_groups"}),
        ("F0 F1 G0 G1 W1 W0", {"split", "param_groups", "weight_order=any"}),
        ("F0 B0 zero_none", {"full", "clears_grads"}),
        ("F0 B0 zero_fill", {"full", "clears_grads"}),
        ("F0 F1 B0 B1", {"full"}),
        ("F0 F1 B1 B0", {"full", "backward_order=any"}),
        ("F0 F1 I1 I0 W1 W0", {"split", "backward_order=any", "weight_order!=none"}),
        ("F0 F1 I0 I1 W1 W0", {"split", "weight_order=any"}),
        ("F0 F1 I1 I0 W0 W1", {"split", "backward_order=any", "weight_order=any"}),
        ("F0 F1 F2 B0 I2 B1 W2", {"full", "split", "mixed", "backward_order=any", "weight_order!=none"}),
        ("F0 F1 B1", {"full"}),
        ("F0 1F0 1B0 B0", {"full"}),
        ("F0 F1 1F0 1F1 1B1 B0 1B0 B1", {"full", "backward_order=any"}),
        ("F0 B0 W0!", {"full", "split"}),
        ("F0 I0 W0 W0!", {"split"}),
        ("F0 W0! I0 W0", {"split"}),
        ("F0 I0 F1 I1 W1! W0 W1", {"split", "weight_order!=none"}),
        ("F0 I0 F1 W0", {"split"}),
        ("F0 F1 I0 B1 W0", {"full", "split", "mixed", "weight_order!=none"}),
        ("F0 1F0 I0 1I0 W0 1W0", {"split", "weight_order!=none"}),
    ],
)
def test_the_needs_of_a_program_follow_from_its_actions_and_order(text: str, asked: set[str]) -> None:
    assert needs(parse(text)) == asked


def test_microbatches_are_counted_per_stage_and_once_each() -> None:
    actions = parse("F0 F1 1F5 B0 F0 B0 B1")
    assert microbatches(actions) == 2
    assert microbatches(actions, stage=1) == 1
    assert microbatches(actions, stage=2) == 0
