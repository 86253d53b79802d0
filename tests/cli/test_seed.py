from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from gradconform.user_input.option_help import DEFAULT_SEED

Command = Callable[..., Any]


def test_the_default_seed_is_that_of_the_library(command: Command) -> None:
    assert f"seed {DEFAULT_SEED}" in command("run", "autograd", "--checks", "full.gradients.mlp").out


def test_another_seed_draws_other_values(command: Command) -> None:
    def seen(seed: str) -> list[str]:
        done = command("run", "torch", "--checks", "split.gradients.duplicate-input", "--seed", seed)
        assert f"seed {seed}" in done.out
        return re.findall(r"expected (-?[\d.]+)", done.out)

    assert seen("1") == seen("1") != seen("2")


@pytest.mark.parametrize("seed", ["x", "-1", "1.5", "", "4294967296"])
def test_an_invalid_seed_is_refused(command: Command, seed: str) -> None:
    done = command("run", "autograd", f"--seed={seed}")
    assert (done.code, done.out) == (2, "")
    assert f"expected an integer from 0 to 4294967295, got {seed!r}" in done.err
