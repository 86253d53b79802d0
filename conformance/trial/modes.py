"""Modes: what a process is set to while the actions of a trial run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

#: The modes that a trial can have, several at a time.
MODES = {
    "eval": "the stage is in evaluation mode",
    "autocast": "F runs under autocast to bfloat16",
    "no_grad": "B, I and W are called under no_grad, as from a custom function's backward",
    "thread": "B, I and W are each called from another thread than F",
    "deterministic": "torch is told to use deterministic algorithms, and memory that is not written to holds NaN",
    "default_dtype": "the default dtype is float64",
}

#: What a mode asks of an implementation, where it may rightly do without.
NEEDED_BY = {"autocast": "autocast", "no_grad": "called_without_grad"}

#: The modes that a stage's outputs depend on.
OF_FORWARD = frozenset({"eval", "autocast"})

_Found = TypeVar("_Found")


def call_in(modes: frozenset[str], kind: str, device: torch.device, call: Callable[[], _Found]) -> _Found:
    """Make a call of a session for an action of ``kind``, or to ``open`` one; the process is as it was afterwards."""
    if not modes:
        return call()
    backward = kind in {"B", "I", "W"}
    with set_to(modes):
        if kind == "F" and "autocast" in modes:
            with torch.autocast(device.type, torch.bfloat16):
                return call()
        run = _without_grad(call) if backward and "no_grad" in modes else call
        if backward and "thread" in modes:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(run).result()
        return run()


def _without_grad(call: Callable[[], _Found]) -> Callable[[], _Found]:
    def run() -> _Found:
        with torch.no_grad():
            return call()

    return run


@contextlib.contextmanager
def set_to(modes: frozenset[str]) -> Iterator[None]:
    """Set the process to its default dtype and to deterministic algorithms, as ``modes`` say, and back."""
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        if "default_dtype" in modes:
            torch.set_default_dtype(torch.float64)
        if "deterministic" in modes:
            torch.use_deterministic_algorithms(mode=True, warn_only=True)
        yield
    finally:
        if "default_dtype" in modes:
            torch.set_default_dtype(dtype)
        if "deterministic" in modes:
            torch.use_deterministic_algorithms(mode=deterministic, warn_only=warns)
