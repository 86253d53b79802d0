"""State around an action that it must not change: settings of the process, and the action's arguments."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gradconform.torch_releases.deterministic import use_deterministic_algorithms
from gradconform.torch_releases.settings import hooks_on_saved_tensors, without_hooks_on_saved_tensors
from gradconform.trees import Tree, leaves

from .observation import AS_BEFORE

_CHANGED = "changed"


def _numpy_random() -> Any:
    """Return NumPy's module of random numbers; None without NumPy, which torch does not need."""
    try:
        return importlib.import_module("numpy.random")
    except ImportError:
        return None


def state_outside_torch() -> dict[str, Any]:
    """Return a copy of the process state outside torch, by name, to compare with later."""
    numpy = _numpy_random()
    return {
        "Python's random numbers": random.getstate(),
        "NumPy's random numbers": None if numpy is None else numpy.get_state(legacy=False),
        "warning filters": tuple(warnings.filters),
        "environment variables": dict(os.environ),
    }


def _since(before: Mapping[str, Any]) -> dict[str, str]:
    """Return the changes since ``before`` (see :func:`state_outside_torch`); variables are named, without values."""
    if not before:
        return {}
    now = state_outside_torch()
    found = {name: AS_BEFORE if _equal(before[name], now[name]) else _CHANGED for name in before}
    was, has = before["environment variables"], now["environment variables"]
    names = sorted(name for name in {*was, *has} if was.get(name) != has.get(name))
    return {**found, "environment variables": f"{_CHANGED}: {', '.join(names)}" if names else AS_BEFORE}


def _equal(one: Any, other: Any) -> bool:
    """Return whether two states are equal; those of NumPy have arrays in them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    return bool((one == other).all()) if hasattr(one, "all") else bool(one == other)


@contextlib.contextmanager
def state_outside_torch_restored(before: Mapping[str, Any]) -> Iterator[None]:
    """Restore the state of :func:`state_outside_torch` at the end; warning filters have their own context."""
    try:
        yield
    finally:
        random.setstate(before["Python's random numbers"])
        if before["NumPy's random numbers"] is not None:
            _numpy_random().set_state(before["NumPy's random numbers"])
        if os.environ != before["environment variables"]:
            os.environ.clear()
            os.environ.update(before["environment variables"])


def settings(device: torch.device, before: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return the settings of the process by name, and the changes since ``before``.

    ``before`` is a result of :func:`state_outside_torch`.
    """
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "the default dtype": str(torch.get_default_dtype()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": _autocast(device.type),
        "anomaly mode": torch.is_anomaly_enabled(),
        "the number of threads": torch.get_num_threads(),
        "default hooks on saved tensors": hooks_on_saved_tensors(),
        **_since(before),
    }


def _autocast(device_type: str) -> bool | None:
    try:
        return torch.is_autocast_enabled(device_type)
    except RuntimeError:  # lazy, for example, has no autocast
        return None


@contextlib.contextmanager
def settings_restored(device: torch.device) -> Iterator[None]:
    """Restore the settings of the process at the end; its grad mode is left to the code that set it."""
    before, dtype = settings(device), torch.get_default_dtype()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        after = settings(device)
        if after != before:
            torch.set_default_dtype(dtype)
            use_deterministic_algorithms(mode=before["deterministic algorithms"], warn_only=warns)
            if before["autocast"] is not None:  # the device supports it
                torch.set_autocast_enabled(device.type, before["autocast"])
            torch.autograd.set_detect_anomaly(before["anomaly mode"])
            torch.set_num_threads(before["the number of threads"])
            if not before["default hooks on saved tensors"]:
                without_hooks_on_saved_tensors()


class Handed:
    """The lists and dicts of one tree that an action receives, and their entries."""

    def __init__(self, tree: Tree) -> None:
        """Store the current entries of the tree."""
        self._tree, self._entries = tree, list(leaves(tree))

    @property
    def unchanged(self) -> bool:
        """Whether every entry is still the same object in the same place."""
        now = list(leaves(self._tree))
        return len(now) == len(self._entries) and all(
            path == other and leaf is entry for (path, leaf), (other, entry) in zip(now, self._entries, strict=True)
        )


def left_on(args: Mapping[int, Iterable[Any]]) -> dict[str, bool]:
    """Return by name of every argument whether hooks are on it."""
    return {
        f"hooks on argument {slot} of micro-batch {mb}": bool(arg._backward_hooks)  # noqa: SLF001 (torch has no public way to read them)
        for mb, own in args.items()
        for slot, arg in enumerate(own)
        if isinstance(arg, Tensor)
    }
