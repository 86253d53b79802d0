"""Devices, dtypes and the environment: found by trying, refused with what could be named instead."""

from __future__ import annotations

import json

import pytest
import torch

from gradconform.devices.dtypes import DTYPES, dtype_named
from gradconform.devices.environment import environment
from gradconform.devices.prepared import device_named
from gradconform.user_input.values import SelectionError, nearest


@pytest.mark.parametrize("name", DTYPES)
def test_a_dtype_is_found_by_its_name_its_torch_name_or_as_an_object(name: str) -> None:
    assert dtype_named(name) == dtype_named(f"torch.{name}") == dtype_named(DTYPES[name]) == DTYPES[name]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("flaot32", "did you mean float32?"),
        ("bf16", "did you mean bfloat16?"),
        ("int8", "Integers have no gradients"),
        (torch.complex64, ""),
        (None, ""),
    ],
)
def test_an_unknown_dtype_is_refused_with_the_nearest_dtypes(name: object, near: str) -> None:
    with pytest.raises(SelectionError, match="unsupported dtype") as raised:
        dtype_named(name)  # type: ignore[arg-type] # a wrong type is what is tried
    assert near in str(raised.value)


@pytest.mark.parametrize("name", ["cpu", torch.device("cpu")], ids=["text", "device"])
def test_the_cpu_can_be_named(name: str | torch.device) -> None:
    assert device_named(name) == torch.device("cpu")


@pytest.mark.parametrize(("name", "found"), [("bta", "beta"), ("zzz", "alpha, beta, gamma"), ("gama", "gamma, alpha")])
def test_the_nearest_names_are_suggested_or_all_if_none_is_near(name: str, found: str) -> None:
    assert nearest(name, {"gamma", "alpha", "beta"}) == found


def test_the_environment_is_json_and_lists_the_variables_that_change_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("HOME_OF_SECRETS", "hidden")
    found = environment()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["torch"] == torch.__version__
    assert found["variables"]["OMP_NUM_THREADS"] == "2"
    assert "hidden" not in json.dumps(found)
