from __future__ import annotations

from collections.abc import Callable
from typing import Any

Command = Callable[..., Any]

#: A SHOULD that torch 2.13 does not meet.
FAILED_SHOULD = ("--checks", "hooks.post_accumulate.mlp-split")


def test_a_failed_should_is_reported_in_full_and_does_not_decide(command: Command) -> None:
    done = command("run", "torch", *FAILED_SHOULD, "-v")
    assert done.code == 5
    assert "failed SHOULD (they decide only with --strict): 1 check" in done.out
    assert "hooks.post_accumulate.mlp-split: Post-accumulate-gradient hooks SHOULD" in done.out
    assert done.last.endswith("checks ran; 1 SHOULD failed")


def test_strict_makes_a_failed_should_decide(command: Command) -> None:
    done = command("run", "torch", *FAILED_SHOULD, "--strict")
    assert done.code == 1
    assert "= failed SHOULD: 1 check =" in done.out
    assert "does NOT conform: 1 SHOULD failed" in done.last
