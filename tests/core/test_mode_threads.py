"""Threads that a trial's modes start compute as the caller's thread does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gradconform.trial.modes import call_in, threads_like_this_one

CPU = torch.device("cpu")
TASKS = Path("/proc/self/task")

pytestmark = pytest.mark.skipif(
    not (TASKS.exists() and torch.backends.mkl.is_available()), reason="counts the threads that MKL starts, on Linux"
)


@pytest.fixture(params=[1, 2])
def computing(request: pytest.FixtureRequest) -> Iterator[int]:
    """Let this thread compute with one thread, or with another number than a new thread would choose."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def started_by_a_product() -> int:
    """Return how many threads a product starts. Nothing before it asks torch for their number, which would set it."""
    matrix = torch.empty(512, 512)
    before = set(TASKS.iterdir())
    torch.mm(matrix, matrix)
    return len(set(TASKS.iterdir()) - before)  # those of an earlier thread may end meanwhile


@pytest.mark.parametrize(("mode", "action"), [("thread", "B"), ("thread", "W"), ("forward_thread", "F")])
def test_another_thread_uses_as_many_threads(mode: str, action: str, computing: int) -> None:
    """MKL would take all cores there, which changes the order of sums."""
    assert call_in(frozenset({mode}), action, CPU, started_by_a_product) == computing - 1


def test_threads_at_once_use_as_many_threads(computing: int) -> None:
    """Two stages at the same time compute as one does alone."""
    with threads_like_this_one(2) as threads:
        first = threads.submit(started_by_a_product).result()
    assert first == computing - 1
