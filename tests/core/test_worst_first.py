"""The findings on a stage of a user's own: by action, and of one action the worst first."""

from __future__ import annotations

from gradconform.judge.finding import Finding
from gradconform.run.narrowing import worst_first


def finding(where: str, action: str, error_ratio: float | None) -> Finding:
    return Finding("mismatch" if error_ratio else "missing", where, action, "", error_ratio=error_ratio)


def test_actions_keep_their_order_and_each_action_lists_the_worst_first() -> None:
    found = [
        finding("layers.0.weight", "W0", 3.0),
        finding("layers.1.weight", "W0", 90.0),
        finding("layers.2.bias", "W0", None),
        finding("head.weight", "W1", 900.0),
        finding("head.bias", "W1", 3.0),
        finding("norm.weight", "W0", 90.0),
    ]
    assert [(one.action, one.where) for one in worst_first(found)] == [
        ("W0", "layers.2.bias"),
        ("W0", "layers.1.weight"),
        ("W0", "norm.weight"),
        ("W0", "layers.0.weight"),
        ("W1", "head.weight"),
        ("W1", "head.bias"),
    ]


def test_no_findings_give_an_empty_list() -> None:
    assert worst_first([]) == []
