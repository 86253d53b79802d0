"""How devices are named."""

from __future__ import annotations

import pytest

from gradconform.devices.names import device_names
from gradconform.user_input.values import SelectionError


def test_commas_separate_names_and_duplicates_count_once() -> None:
    assert [name.text for name in device_names(["cpu, cuda:1", "npu:*,cpu"])] == ["cpu", "cuda:1", "npu:*"]


@pytest.mark.parametrize(
    ("text", "device_type", "index", "discovers"),
    [
        ("cpu", "cpu", None, None),
        ("cuda:12", "cuda", "12", None),
        ("simx:*", "simx", "*", None),
        ("auto", "auto", None, "auto"),
        ("all", "all", None, "all"),
    ],
)
def test_a_name_has_a_type_and_an_index(text: str, device_type: str, index: str | None, discovers: str | None) -> None:
    (name,) = device_names([text])
    assert (name.type, name.index, name.discovers) == (device_type, index, discovers)


@pytest.mark.parametrize("text", ["", "cpu:x", "cpu:", ":1", "cuda:-1", "cuda:1:2", "all:0", "auto:*", "cuda 1", 1.5])
def test_an_invalid_device_name_is_refused_before_probing(text: object) -> None:
    with pytest.raises(SelectionError, match="is not a device name; expected TYPE, TYPE:INDEX or TYPE") as raised:
        device_names([text])
    assert raised.value.exit_code == 2
