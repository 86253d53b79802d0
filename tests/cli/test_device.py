from __future__ import annotations

from collections.abc import Callable
from typing import Any

Command = Callable[..., Any]


def test_the_default_is_the_cpu(command: Command) -> None:
    assert "on cpu float32" in command("run", "autograd", "--checks", "full.gradients.mlp").out


def test_an_unusable_device_is_refused_with_the_call_that_failed(command: Command) -> None:
    done = command("run", "autograd", "--device", "no-such-device")
    assert (done.code, done.out) == (4, "")
    told = "gradconform: device 'no-such-device' cannot be used: torch.device('no-such-device') raised RuntimeError: "
    assert done.err.startswith(told)
    assert "usable here: cpu" in done.err
    assert "Traceback" not in done.err


def test_doctor_suggests_a_plugin_for_a_device_unknown_to_torch(command: Command) -> None:
    done = command("doctor", "--device", "no-such-device")
    assert done.code == 4
    assert "If torch does not know the device, use --device-plugin MODULE or a registered name, such as" in " ".join(
        done.out.split()
    )


def test_doctor_shows_only_the_named_device(command: Command) -> None:
    done = command("doctor", "--device", "cpu")
    assert done.code == 0
    assert [line for line in done.out.splitlines() if line and not line.startswith(" ")][1:] == ["devices"]
    assert "  cpu: can be used" in done.out


def test_an_invalid_device_name_is_refused_before_the_run(command: Command) -> None:
    done = command("run", "autograd", "--device", "cpu:x")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("gradconform: 'cpu:x' is not a device name; expected TYPE, TYPE:INDEX or ")


def test_a_device_named_twice_runs_once(command: Command) -> None:
    done = command("run", "autograd", "--device", "cpu", "--device", "cpu", "--checks", "full.gradients.mlp")
    assert "1 of 1" in done.out


def test_one_unusable_device_among_usable_ones_is_refused(command: Command) -> None:
    assert command("run", "autograd", "--device", "cpu,no-such-device").code == 4
