"""Failures that are alike are explained once; a mistake that was not tried on a check names the check that it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gradconform import Report, check_stage_backward
from gradconform.contract.check import Check
from gradconform.diagnosis.cause import Cause, Mistake
from gradconform.judge.finding import Finding
from gradconform.reference import split
from gradconform.run import single_mistakes
from gradconform.run.alike_failures import AlikeFailures
from gradconform.run.single_mistakes import JudgedTrial, SingleMistakes
from gradconform.trial.program import parse

KEPT, DOUBLED = Cause(Mistake.STANDING_KEPT, names=("W",)), Cause(Mistake.ALL_MULTIPLIED, names=("W",), factors=(2.0,))


class Mistakes:
    """Explains checks as told, and counts the examined ones."""

    def __init__(self, explains: dict[str, dict[Cause, list[int]]]) -> None:
        self.examined: list[str] = []
        self._explains = explains

    def explained(
        self, check: Check, _: object, likely: Sequence[Cause] = (), *, only: bool = False
    ) -> dict[Cause, list[int]]:
        self.examined.append(check.id)
        found = self._explains[check.id]
        return {cause: left for cause, left in found.items() if cause in likely} if only else found


def failing(kind: str = "mismatch", program: str = "F0 I0 W0") -> list[JudgedTrial]:
    evidence = SimpleNamespace(trial=SimpleNamespace(actions=parse(program)))
    finding = Finding(cast("Any", kind), "0.weight", "W0", "wrong", sort="parameter gradient")
    return [JudgedTrial(cast("Any", evidence), [finding])]


def explained(
    explains: dict[str, dict[Cause, list[int]]], **fails: list[JudgedTrial]
) -> tuple[Mistakes, dict[str, tuple[dict[str, Any], ...]]]:
    mistakes = Mistakes(explains)
    alike = AlikeFailures(cast("SingleMistakes", mistakes))
    found = {
        name: alike.explained(cast("Check", SimpleNamespace(id=name)), fails.get(name, failing())) for name in explains
    }
    return mistakes, found


def test_two_of_a_group_and_every_power_of_two_are_examined() -> None:
    mistakes, found = explained({f"c{number}": {KEPT: []} for number in range(1, 21)})
    assert mistakes.examined == ["c1", "c2", "c4", "c8", "c16"]
    assert "verified_on" not in found["c2"][0]
    assert found["c3"] == ({"mistake": KEPT.to_dict(), "left": [], "verified_on": "c1"},)


def test_no_member_inherits_once_a_sample_is_not_explained() -> None:
    explains = {f"c{number}": {} if number == 4 else {KEPT: []} for number in range(1, 8)}
    mistakes, found = explained(explains)
    assert mistakes.examined == ["c1", "c2", "c4", "c5", "c6", "c7"]
    assert found["c4"] == ()
    assert all("verified_on" not in entry for name in ("c5", "c6", "c7") for entry in found[name])


def test_a_mistake_that_leaves_findings_is_not_inherited() -> None:
    mistakes, found = explained({f"c{number}": {KEPT: [0]} for number in range(1, 6)})
    assert mistakes.examined == ["c1", "c2", "c3", "c4", "c5"]
    assert found["c5"] == ({"mistake": KEPT.to_dict(), "left": [0]},)


def test_where_members_differ_the_most_helpful_mistake_alone_is_tried() -> None:
    both = {f"c{number}": {DOUBLED: [0], KEPT: [0]} if number > 1 else {KEPT: [0]} for number in range(1, 4)}
    _, found = explained(both)
    assert [one["mistake"]["kind"] for one in found["c3"]] == ["standing_kept"]


def test_other_findings_and_other_changes_between_backwards_are_another_group() -> None:
    explains = {name: {KEPT: []} for name in ("a1", "a2", "other", "frozen", "a3")}
    fails = {"other": failing("missing"), "frozen": failing(program="F0 I0 W0 freeze0 F1 I1 W1")}
    mistakes, _ = explained(explains, **fails)
    assert mistakes.examined == ["a1", "a2", "other", "frozen"]


def test_failures_that_nothing_explains_are_examined_seldom() -> None:
    names = [f"c{number}" for number in range(100)]
    programs = {
        name: failing(program=f"F0 I0 W0 {'freeze0 F1 I1 W1 ' * (place % 2)}") for place, name in enumerate(names)
    }
    mistakes, found = explained({name: {} for name in names}, **programs)
    assert len(mistakes.examined) < 10
    assert set(found.values()) == {()}


@pytest.fixture
def drives(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """The drives of plain autograd with a mistake."""
    seen: list[object] = []
    drive = single_mistakes.drive
    monkeypatch.setattr(single_mistakes, "drive", lambda *args, **named: seen.append(args) or drive(*args, **named))  # type: ignore[func-returns-value] # to see it
    return seen


def keeps_first() -> SimpleNamespace:
    """Return the right split, but its W adds nothing to a gradient that is already there."""

    def weight(weights: Iterator[Any], groups: list[dict[str, Any]], retain_graph: bool = False) -> Any:  # noqa: FBT001, FBT002 (torch's own signature)
        own = list(weights)
        split.stage_backward_weight(iter([one for one in own if one.grad is None]), groups, retain_graph)
        return tuple(one.grad for one in own)

    names = ("stage_backward", "stage_backward_input")
    return SimpleNamespace(**{name: getattr(split, name) for name in names}, stage_backward_weight=weight)


def test_one_mistake_in_many_checks_is_verified_on_few(drives: list[object]) -> None:
    report: Report = check_stage_backward(keeps_first(), checks="split.loss.*")
    failed = [result for result in report if result.status == "failed"]
    assert len(failed) > 40
    whole = {one["mistake"]["kind"] for result in failed for one in result.undone if not one["left"]}
    assert "standing_kept" in whole
    assert all(any(one["mistake"]["kind"] == "standing_kept" for one in result.undone) for result in failed)
    ids = {result.check for result in failed}
    assert {one["verified_on"] for result in failed for one in result.undone if "verified_on" in one} <= ids
    assert len(drives) < len(failed)
