"""What tensors show of their memory, and what is never asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from gradconform.devices import tensor_facts
from gradconform.devices.fact_probes import shows
from gradconform.devices.probe import FACTS
from gradconform.devices.tensor_facts import (
    address_of,
    are_one_memory,
    place_of,
    shared_place_of,
    start_of,
    storage_of,
    version_of,
    withhold,
    without_repeats,
)

HIDDEN = frozenset({"version", "offset", "address"})


@pytest.fixture
def hidden() -> Iterator[None]:
    """The device ``meta``, whose tensors are asked for nothing."""
    withhold("meta", HIDDEN)
    yield
    withhold("meta", ())


class Silent(Tensor):
    """A tensor that fails whoever asks for its memory."""

    def data_ptr(self) -> int:
        raise AssertionError

    def untyped_storage(self) -> torch.UntypedStorage:
        raise AssertionError

    def storage_offset(self) -> int:
        raise AssertionError


@pytest.mark.parametrize("fact", FACTS)
def test_the_cpu_shows_every_fact(fact: str) -> None:
    assert shows(torch.device("cpu"), fact)


def test_views_of_one_memory_have_the_same_place_and_different_starts() -> None:
    whole = torch.zeros(4, 3)
    assert place_of(whole) == place_of(whole[2]) == address_of(whole)
    assert start_of(whole[2]) - start_of(whole) == 2 * 3 * 4
    assert place_of(whole) != place_of(whole.clone())


def test_a_sparse_tensor_has_a_place_and_no_address() -> None:
    sparse = torch.eye(3).to_sparse()
    assert (address_of(sparse), storage_of(sparse)) == (None, None)
    assert place_of(sparse) == id(sparse)


@pytest.mark.usefixtures("hidden")
def test_a_hidden_fact_of_a_device_is_not_read() -> None:
    tensor = torch.zeros(3, device="meta").as_subclass(Silent)
    assert address_of(tensor) is None
    assert start_of(tensor) == place_of(tensor) == id(tensor)
    assert version_of(tensor) == 0


def test_a_tensor_without_values_has_no_address() -> None:
    assert address_of(torch.zeros(3, device="meta")) is None


@pytest.mark.parametrize("shown", [True, False])
def test_without_addresses_shared_memory_is_detected_by_a_write(
    monkeypatch: pytest.MonkeyPatch, *, shown: bool
) -> None:
    if not shown:
        monkeypatch.setattr(tensor_facts, "address_of", lambda _: None)
    values = torch.arange(6.0)
    assert are_one_memory(values, values.view(6))
    assert not are_one_memory(values, values.clone())
    assert not are_one_memory(values, values.view(2, 3))
    assert values.tolist() == [0, 1, 2, 3, 4, 5]
    repeated = torch.zeros(()).expand(2, 3)
    assert are_one_memory(repeated, repeated.detach())
    assert not are_one_memory(repeated, torch.zeros(2, 3))
    assert repeated.tolist() == [[0.0] * 3] * 2


def test_all_tensors_without_an_address_have_the_same_shared_place() -> None:
    whole = torch.zeros(4, 3)
    assert shared_place_of(whole[1]) == shared_place_of(whole) != shared_place_of(whole.clone())
    hidden = torch.zeros(3, device="meta")
    assert shared_place_of(hidden) == shared_place_of(torch.zeros(3, device="meta")) == 0
    sparse = torch.eye(3).to_sparse()
    assert shared_place_of(sparse) == place_of(sparse)


def test_a_write_without_repeats_reaches_every_element() -> None:
    row = torch.zeros(3)
    repeated = row.expand(2, 3)
    without_repeats(repeated).copy_(without_repeats(torch.ones(2, 3), like=repeated))
    assert repeated.tolist() == [[1.0] * 3] * 2
    assert without_repeats(row) is row
