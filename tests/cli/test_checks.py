from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

Command = Callable[..., Any]


@pytest.mark.parametrize(
    "options",
    [
        ("--checks", "full.gradients.mlp", "--checks", "full.loss.mlp"),
        ("--checks", "full.gradients.mlp,full.loss.mlp"),
        ("--checks", "full.*.mlp"),
    ],
)
def test_check_patterns_can_be_repeated_listed_or_globs(command: Command, options: tuple[str, ...]) -> None:
    done = command("run", "autograd", *options)
    assert re.search(r"^full +2 of 2 +2 passed$", done.out, re.MULTILINE)


def test_a_run_of_selected_checks_is_incomplete_and_not_a_pass(command: Command) -> None:
    done = command("run", "autograd", "--checks", "full.gradients.mlp")
    assert done.code == 5
    assert re.fullmatch(r"autograd 1\.0\.0: incomplete, no verdict: 1 of \d+ checks ran, none failed", done.last)
    assert re.search(r"; \d+ not\s+selected", done.out)


def test_a_pattern_that_matches_no_check_is_refused_with_the_nearest_id(command: Command) -> None:
    done = command("run", "autograd", "--checks", "full.gradients.mpl")
    assert (done.code, done.out) == (2, "")
    assert "'full.gradients.mpl' matches no check" in done.err
    assert "full.gradients.mlp" in done.err


def test_a_part_of_a_check_id_is_refused_with_matching_ids(command: Command) -> None:
    done = command("run", "autograd", "--checks", "layer-norm")
    assert done.code == 2
    assert "full.gradients.layer-norm" in done.err
