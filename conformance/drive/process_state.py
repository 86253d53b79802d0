"""State around an action that it must not change: settings of the process, and the action's arguments."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pickle
import random
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from gradconform.torch_releases.settings import hooks_on_saved_tensors
from gradconform.trees import Tree, leaves

from .observation import AS_BEFORE

_CHANGED = "changed"


def numpy_random() -> Any:
    """Return NumPy's module of random numbers; None without NumPy, which torch does not need."""
    try:
        return sys.modules.get("numpy.random") or importlib.import_module("numpy.random")
    except ImportError:
        return None


def numpy_state() -> bytes | None:
    """Return the state of NumPy's random numbers as a value that ``==`` compares; None without NumPy.

    Every run of a target reads it several times, and NumPy needs 50 µs to give it. So the memory of its generator is
    compared first. The second number of a normal pair waits outside this memory: where one has waited, NumPy is asked.
    """
    numpy = numpy_random()
    if numpy is None:
        return None
    memory = _generator_memory(numpy)
    if memory is not None and (known := _KNOWN.get(memory)) is not None:
        return known
    state = numpy.get_state(legacy=False)
    found = pickle.dumps(state)
    if memory is not None and memory not in _KNOWN:
        _KNOWN.clear()
        _KNOWN[memory] = None if state["has_gauss"] else found
    return found


#: The last state by the generator's memory; None if a number waited.
_KNOWN: dict[bytes, bytes | None] = {}

#: The bytes of NumPy's ``mt19937_state``: 624 words and a position.
_MT19937_BYTES = 625 * 4


def _generator_memory(numpy: Any) -> bytes | None:
    """Return the memory of the generator behind NumPy's functions; None if its size is not known."""
    generator: Any = numpy.get_bit_generator() if hasattr(numpy, "get_bit_generator") else None
    if type(generator) is not numpy.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)


def state_outside_torch() -> dict[str, Any]:
    """Return a copy of the process state outside torch, by name, to compare with later."""
    return {
        "Python's random numbers": random.getstate(),
        "NumPy's random numbers": numpy_state(),
        "warning filters": tuple(warnings.filters),
        # As the process holds them, since os.environ decodes each in Python.
        "environment variables": dict(getattr(os.environ, "_data", os.environ)),
    }


def _since(before: Mapping[str, Any]) -> dict[str, str]:
    """Return the changes since ``before`` (see :func:`state_outside_torch`); variables are named, without values."""
    if not before:
        return {}
    now = state_outside_torch()
    found = {name: AS_BEFORE if before[name] == now[name] else _CHANGED for name in before}
    was, has = before["environment variables"], now["environment variables"]
    names = [] if was == has else sorted(os.fsdecode(name) for name in {*was, *has} if was.get(name) != has.get(name))
    return {**found, "environment variables": f"{_CHANGED}: {', '.join(names)}" if names else AS_BEFORE}


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


@contextlib.contextmanager
def changes_noted(device: torch.device, changes: dict[str, Any]) -> Iterator[None]:
    """Put into ``changes`` what happens to each setting here: the end of a mode hides what a call in it changed."""
    before = settings(device)
    try:
        yield
    finally:
        for name, now in settings(device).items():
            changed = f"{now} instead of {before[name]}"
            changes[f"{name} in the modes of the call"] = AS_BEFORE if now == before[name] else changed


def _autocast(device_type: str) -> bool | None:
    try:
        return torch.is_autocast_enabled(device_type)
    except RuntimeError:  # lazy, for example, has no autocast
        return None


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
