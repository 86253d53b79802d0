"""Modes: the settings of the process while the actions of a trial run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from gradconform.torch_releases.deterministic import use_deterministic_algorithms

#: The modes that a trial can have, several at a time. A custom Function calls a backward under no_grad, for example.
MODES = {
    "eval": "the stage is in evaluation mode",
    "autocast": "F runs under autocast to bfloat16",
    "autocast_float16": "F runs under autocast to float16",
    "float32_high": "float32 products may use TF32 or similar",
    "float32_medium": "float32 products may use bfloat16",
    "no_grad": "B, I and W run under no_grad",
    "thread": "B, I and W use other threads",
    "forward_thread": "F uses another thread",
    "deterministic": "deterministic algorithms fill unwritten memory with NaN",
    "default_dtype": "the default dtype is float64",
}

#: The capabilities that a mode requires, if an implementation may validly lack them.
NEEDED_BY = {"autocast": "autocast", "autocast_float16": "autocast", "no_grad": "called_without_grad"}

#: The modes that a stage's outputs depend on.
OF_FORWARD = frozenset({"eval", "autocast", "autocast_float16", "float32_high", "float32_medium"})

#: The modes in which a type of device chooses the dtype of an output by its own lists.
AUTOCAST = frozenset({"autocast", "autocast_float16"})

#: The eps of the computation, by the modes in which it may be coarser than the dtype's.
LESS_PRECISE = {
    "autocast": 2.0**-7, "autocast_float16": 2.0**-10, "float32_high": 2.0**-10, "float32_medium": 2.0**-7,
}  # fmt: skip

_Found = TypeVar("_Found")


def call_in(modes: frozenset[str], kind: str, device: torch.device, call: Callable[[], _Found]) -> _Found:
    """Return the result of a session's call for an action of ``kind``, or to ``open`` one; the process is restored."""
    if not modes:
        return call()
    backward = kind in {"B", "I", "W"}
    with set_to(modes):
        lower = _lower(modes) if kind == "F" else None
        run = call if lower is None else _under_autocast(call, device.type, lower)
        run = _without_grad(run) if backward and "no_grad" in modes else run
        if (backward and "thread" in modes) or (kind == "F" and "forward_thread" in modes):
            with threads_like_this_one(1) as thread:
                return thread.submit(run).result()
        return run()


def threads_like_this_one(count: int) -> ThreadPoolExecutor:
    """Return a pool of ``count`` new threads, each of which computes with as many threads as this one does.

    MKL takes all cores in a new thread, whatever was set in another one: then sums get another order there, and small
    products wait for each other.
    """
    return ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))


def _lower(modes: frozenset[str]) -> torch.dtype | None:
    """Return the dtype of autocast, None without autocast."""
    if "autocast" in modes:
        return torch.bfloat16
    return torch.float16 if "autocast_float16" in modes else None


def _under_autocast(call: Callable[[], _Found], device: str, lower: torch.dtype) -> Callable[[], _Found]:
    def run() -> _Found:  # in its own thread: autocast is a setting of the thread
        with torch.autocast(device, lower):
            return call()

    return run


def _without_grad(call: Callable[[], _Found]) -> Callable[[], _Found]:
    def run() -> _Found:
        with torch.no_grad():
            return call()

    return run


@contextlib.contextmanager
def set_to(modes: frozenset[str]) -> Iterator[None]:
    """Set the process as ``modes`` say, and restore it afterwards.

    The settings are its default dtype, deterministic algorithms, and float32's products.
    """
    dtype = torch.get_default_dtype()
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        if "default_dtype" in modes:
            torch.set_default_dtype(torch.float64)
        if "deterministic" in modes:
            use_deterministic_algorithms(mode=True, warn_only=True)
        with contextlib.ExitStack() as undo:
            if modes & {"float32_high", "float32_medium"}:
                undo.enter_context(_products_in("high" if "float32_high" in modes else "medium"))
            yield
    finally:
        if "default_dtype" in modes:
            torch.set_default_dtype(dtype)
        if "deterministic" in modes:
            use_deterministic_algorithms(mode=deterministic, warn_only=warns)


@contextlib.contextmanager
def _products_in(precision: str) -> Iterator[None]:
    """Set the precision of float32 products, and restore it with the settings that torch derives from it."""
    before = torch.get_float32_matmul_precision()
    of_torch = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
    owners: list[Any] = [one for one in of_torch if hasattr(one, "fp32_precision")]  # no release before 2.9 has it
    derived = [one.fp32_precision for one in owners]
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        for owner, value in zip(owners, derived, strict=True):
            owner.fp32_precision = value
