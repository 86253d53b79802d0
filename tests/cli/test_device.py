from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Command = Callable[..., Any]


def test_the_default_is_the_cpu(command: Command) -> None:
    assert "on cpu float32" in command("run", "autograd", "--checks", "full.gradients.mlp").out


@pytest.mark.parametrize("device", ["no-such-device", "cpu:x"])
def test_a_device_that_cannot_be_used_is_refused_with_those_that_can(command: Command, device: str) -> None:
    done = command("run", "autograd", "--device", device)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"gradconform: device {device!r} cannot be used")
    assert "usable here: cpu" in done.err
    assert "Traceback" not in done.err


def test_a_device_named_twice_runs_once(command: Command) -> None:
    done = command("run", "autograd", "--device", "cpu", "--device", "cpu", "--checks", "full.gradients.mlp")
    assert "1 of 1" in done.out


def test_one_bad_device_among_good_ones_is_refused(command: Command) -> None:
    assert command("run", "autograd", "--device", "cpu,no-such-device").code == 2
