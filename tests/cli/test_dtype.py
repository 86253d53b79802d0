from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

Command = Callable[..., Any]


def test_the_default_is_float32(command: Command) -> None:
    assert "on cpu float32, seed" in command("run", "autograd", "--checks", "full.gradients.mlp").out


@pytest.mark.parametrize(
    "options",
    [
        ("--dtype", "float32,float64"),
        ("--dtype", "float32", "--dtype", "float64"),
        ("--dtype", "torch.float32,float64"),
    ],
)
def test_several_dtypes_run_in_the_given_order_and_are_listed_separately(
    command: Command, options: tuple[str, ...]
) -> None:
    done = command("run", "autograd", *options, "--checks", "full.gradients.mlp")
    assert "on cpu float32, cpu float64" in done.out
    assert re.findall(r"^cpu (\w+)  full +1 of 1", done.out, re.MULTILINE) == ["float32", "float64"]


def test_a_check_failing_in_several_dtypes_is_reported_once_with_all_dtypes(command: Command) -> None:
    done = command("run", "torch", "--dtype", "float32,float64", "--checks", "split.gradients.output-view")
    assert done.out.count("split.gradients.output-view [cpu float32, cpu float64]: ") == 1
    assert "failed MUST: 1 check, 2 results " in done.out


def test_an_unknown_dtype_is_refused_with_the_known_dtypes(command: Command) -> None:
    done = command("run", "autograd", "--dtype", "flaot32")
    assert (done.code, done.out) == (2, "")
    assert "dtype 'flaot32'" in done.err
    assert "float32" in done.err


@pytest.mark.parametrize("given", ["", "float32,", ","])
def test_an_empty_name_is_refused(command: Command, given: str) -> None:
    done = command("run", "autograd", "--dtype", given)
    assert done.code == 2
    assert "empty name" in done.err
