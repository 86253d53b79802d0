"""A few large tensors do not stay in memory: stores count bytes, and large draws are freed with their trial."""

from __future__ import annotations

import gc

import torch

from gradconform.drive.reference64 import Computed
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.trial.bounded import Bounded, bytes_of
from gradconform.trial.materials import Materials
from gradconform.trial.trial import Trial

KB = 2**10


def tensor(kilobytes: int) -> torch.Tensor:
    return torch.zeros(kilobytes * KB // 4)


def test_the_oldest_values_are_freed_when_the_bytes_are_used_up() -> None:
    store: Bounded[torch.Tensor] = Bounded(10 * KB)
    for name in "abc":
        store.put(name, tensor(4))
    assert [store.get(name) is None for name in "abc"] == [True, False, False]


def test_a_value_that_is_too_large_is_not_stored_and_frees_no_other() -> None:
    store: Bounded[torch.Tensor] = Bounded(10 * KB)
    store.put("small", tensor(4))
    store.put("large", tensor(11))
    assert store.get("large") is None
    assert store.get("small") is not None


def test_a_taken_value_leaves_its_bytes_to_others() -> None:
    store: Bounded[torch.Tensor] = Bounded(10 * KB)
    store.put("a", tensor(8))
    assert store.pop("a") is not None
    store.put("b", tensor(8))
    store.put("b", tensor(8))
    assert (len(store), store.get("b") is None) == (1, False)


def test_a_tensor_counts_once_in_nested_values() -> None:
    one = tensor(1)
    assert bytes_of({"a": (one, [one, None]), "b": tensor(2)}) == 3 * KB


def test_computed_values_beyond_their_bytes_are_computed_again() -> None:
    made: list[str] = []
    computed = Computed(4 * KB)
    for name in "aabba":
        computed.of(name, lambda name=name: made.append(name) or tensor(3))  # type: ignore[func-returns-value,misc] # to see it
    assert "".join(made) == "aba"


def large_tensors() -> int:
    gc.collect()
    return sum(type(one) is torch.Tensor and one.numel() == 700 * KB for one in gc.get_objects())


def test_large_draws_are_freed_with_the_materials_of_their_trial() -> None:
    case = StageCase("large-draws", "one wide Linear", lambda: torch.nn.Linear(1, 700, bias=False), (Normal((KB, 1)),))
    materials = Materials(
        Trial(stages=(case,), program="F0 B0"), dtype=torch.float32, device=torch.device("cpu"), seed=0
    )
    (first,), (again,) = materials.output_grads(0, 0), materials.output_grads(0, 0)
    assert torch.equal(first, again)
    assert materials.example_outputs(0).shape == first.shape == (KB, 700)
    del first, again
    assert large_tensors() == 2  # the drawn gradient and the example
    del materials
    assert large_tensors() == 0
