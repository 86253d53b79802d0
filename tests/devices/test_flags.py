"""Flags of torch that an option sets for a run: set while a check runs, put back, and told."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradconform
from gradconform.devices.environment import environment
from gradconform.devices.flags import VALUES, flags_named, flags_set
from gradconform.drive.process_state import settings
from gradconform.reference.autograd import AutogradAdapter
from gradconform.user_input.values import SelectionError


def numbers() -> dict[str, Any]:
    found = environment()
    return {
        **found["backends"],
        **{key: found[key] for key in ("deterministic_algorithms", "float32_matmul_precision")},
    }


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in VALUES.items() for value in values])
def test_a_flag_is_set_and_restored(name: str, value: str) -> None:
    before = numbers()
    with flags_set({name: value}, "cpu"):
        inside = numbers()
    assert numbers() == before
    others = [other for other in VALUES[name] if other != value]
    seen = []
    for other in others:
        with flags_set({name: other}, "cpu"):
            seen.append(numbers())
    assert all(inside != one for one in seen) or {value, *others} == {"on", "warn", "off"}


def test_a_flag_is_restored_after_an_error() -> None:
    before = numbers()
    with pytest.raises(ZeroDivisionError), flags_set(dict.fromkeys(("tf32", "deterministic_algorithms"), "on"), "cpu"):
        _ = 1 / 0
    assert numbers() == before


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["tf23=on"], "unknown flag 'tf23'; nearest: tf32"),
        (["tf32"], "flag: expected NAME=VALUE, such as tf32=on; got 'tf32'"),
        (["tf32=yes"], "flag tf32: expected one of on, off, got 'yes'"),
        (["tf32=on", "tf32=off"], "flag tf32 has two values, 'on' and 'off'; give it once"),
        ({"autocast": "float32"}, "flag autocast: expected one of off, bfloat16, float16, got 'float32'"),
    ],
)
def test_an_invalid_flag_is_refused(given: Any, told: str) -> None:
    with pytest.raises(SelectionError) as raised:
        flags_named(given)
    assert str(raised.value) == told


def test_flags_are_set_around_both_implementations_and_reported() -> None:
    seen: set[tuple[bool, bool]] = set()

    class Watching(AutogradAdapter):
        def open(self, stage: Any, spec: Any) -> Any:
            seen.add((torch.are_deterministic_algorithms_enabled(), torch.is_autocast_enabled("cpu")))
            return super().open(stage, spec)

    report = gradconform.check_stage_backward(
        Watching(), checks="full.gradients.mlp", flags=["deterministic_algorithms=on", "autocast=bfloat16"]
    )
    assert [result.status for result in report] == ["passed"]
    assert seen == {(True, True)}
    assert not torch.are_deterministic_algorithms_enabled()
    assert report.environment["flags"] == {"deterministic_algorithms": "on", "autocast": "bfloat16"}
    assert report.environment["deterministic_algorithms"] is True
    assert report.environment["backends"]["autocast"] == "cpu bfloat16"
    assert gradconform.read_report(report.to_json()).environment["flags"] == report.environment["flags"]


def test_a_device_without_autocast_has_settings() -> None:
    assert settings(torch.device("lazy"))["autocast"] is None
    assert settings(torch.device("cpu"))["autocast"] is False
