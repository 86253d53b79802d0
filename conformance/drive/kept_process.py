"""The state of the process that a target may change, restored after everything that runs a target.

What of it a check judges is in ``process_state``. Here, all of it is restored, so that no check starts from what an
earlier one left.
"""

from __future__ import annotations

import contextlib
import gc
import locale
import os
import pickle
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import TracebackType
from typing import Any

import torch

from gradconform.devices.device import device_of
from gradconform.torch_releases.deterministic import use_deterministic_algorithms
from gradconform.torch_releases.settings import (
    default_device,
    float32_precisions,
    hooks_on_saved_tensors,
    set_float32_precisions,
    without_hooks_on_saved_tensors,
)

from .process_state import numpy_random, numpy_state


@dataclass(frozen=True, slots=True)
class Setting:
    """One part of the state: ``read`` returns a copy that ``==`` compares, and ``write`` sets it again."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


class ProcessState:
    """The state of the process at the creation of this object.

    Every run of a target reads it twice, so most settings are read by functions of C.
    """

    __slots__ = ("_settings", "_values")

    def __init__(self, device: torch.device) -> None:
        """Store the state; ``device`` adds its autocast."""
        self._settings = _settings_of(device.type)
        self._values = [setting.read() for setting in self._settings]

    def changed(self) -> list[str]:
        """Return the names of what is no longer as it was."""
        return [setting.name for setting, _ in self._changed()]

    def restore(self) -> list[str]:
        """Restore what has changed since, and return its names."""
        changed = self._changed()
        for setting, value in changed:
            with contextlib.suppress(Exception):  # who compares again finds what cannot be restored
                setting.write(value)
        return [setting.name for setting, _ in changed]

    def _changed(self) -> list[tuple[Setting, Any]]:
        now = [setting.read() for setting in self._settings]
        if now == self._values:  # common, and quick
            return []
        pairs = zip(self._settings, self._values, now, strict=True)
        return [(setting, before) for setting, before, after in pairs if before != after]


class KeptProcess:
    """A context that restores the state of the process at its end, with the random generators of torch."""

    __slots__ = ("_device", "_generators", "_state")

    def __init__(self, device: torch.device) -> None:
        """Create the context for a target on ``device``."""
        self._device = device

    def __enter__(self) -> None:
        """Store the state."""
        self._generators = device_of(self._device).generators_kept()
        self._generators.__enter__()
        self._state = ProcessState(self._device)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore it."""
        self._state.restore()
        self._generators.__exit__(kind, error, trace)


@cache
def _settings_of(device_type: str) -> tuple[Setting, ...]:
    """Return the settings in the order in which they are restored: matrix products before the precision of each."""
    autocast = [setting for kind in dict.fromkeys(("cpu", device_type)) for setting in _autocast(kind)]
    return (
        Setting("inference mode", torch.is_inference_mode_enabled, _set_inference_mode),
        Setting("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
        Setting("the default dtype", torch.get_default_dtype, torch.set_default_dtype),
        Setting("the default device", default_device, torch.set_default_device),
        Setting("deterministic algorithms", _deterministic, _set_deterministic),
        *autocast,
        Setting("the cache of autocast", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
        Setting("the nesting of autocast", _autocast_nesting, _set_autocast_nesting),
        Setting("anomaly mode", torch.is_anomaly_enabled, _set_anomaly),
        Setting("the search of anomaly mode for NaN", torch.is_anomaly_check_nan_enabled, _set_nan_search),
        Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
        Setting("default hooks on saved tensors", hooks_on_saved_tensors, _set_hooks_on_saved_tensors),
        Setting("the precision of matrix products", _matmul_precision, _set_matmul_precision),
        Setting("the precision of float32", float32_precisions, set_float32_precisions),
        Setting("Python's random numbers", random.getstate, random.setstate),
        Setting("NumPy's random numbers", numpy_state, _set_numpy_state),
        Setting("warning filters", lambda: tuple(warnings.filters), _set_filters),
        Setting("environment variables", _environment, _set_environment),
        Setting("the working directory", _working_directory, _set_working_directory),
        Setting("signal handlers", _handlers, _set_handlers),
        Setting("sys.path", lambda: tuple(sys.path), _set_path),
        Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit),
        Setting("hooks on exceptions", _exception_hooks, _set_exception_hooks),
        Setting("the locale", partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
        Setting("the garbage collector", gc.isenabled, _set_collector),
    )


def _autocast(kind: str) -> tuple[Setting, ...]:
    """Return the settings of a device type; none if it has no autocast."""
    try:
        torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    except RuntimeError:
        return ()
    enabled = partial(torch.is_autocast_enabled, kind), partial(torch.set_autocast_enabled, kind)
    dtype = partial(torch.get_autocast_dtype, kind), partial(torch.set_autocast_dtype, kind)
    return Setting(f"autocast on {kind}", *enabled), Setting(f"the dtype of autocast on {kind}", *dtype)


#: Modes that were entered to end those that a target has left; a mode ends when its object is freed.
_ENTERED: list[torch.inference_mode] = []


def _set_inference_mode(mode: bool) -> None:  # noqa: FBT001 (as torch's setters)
    _ENTERED.append(torch.inference_mode(mode))
    _ENTERED[-1].__enter__()


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    use_deterministic_algorithms(mode=value[0], warn_only=value[1])


def _autocast_nesting() -> int:
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()


def _set_autocast_nesting(level: int) -> None:
    for _ in range(_autocast_nesting() - level):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _set_anomaly(mode: bool) -> None:  # noqa: FBT001 (as torch's setters)
    torch.set_anomaly_enabled(mode, torch.is_anomaly_check_nan_enabled())


def _set_nan_search(mode: bool) -> None:  # noqa: FBT001 (as torch's setters)
    torch.set_anomaly_enabled(torch.is_anomaly_enabled(), mode)


def _set_hooks_on_saved_tensors(mode: bool) -> None:  # noqa: FBT001 (as torch's setters)
    if not mode:
        without_hooks_on_saved_tensors()


def _matmul_precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the newer settings have values that this one cannot express
        return None


def _set_matmul_precision(value: str | None) -> None:
    if value is not None:
        torch.set_float32_matmul_precision(value)


def _set_numpy_state(value: bytes | None) -> None:
    if value is not None:
        numpy_random().set_state(pickle.loads(value))  # noqa: S301 (written by numpy_state, in this process)


def _set_filters(value: tuple[Any, ...]) -> None:
    warnings.resetwarnings()  # this also forgets which warnings were shown
    warnings.filters.extend(value)  # type: ignore[attr-defined] # a list, typed as a sequence


def _environment() -> dict[Any, Any]:
    """Return a copy of the variables as the process holds them, since ``os.environ`` decodes each in Python."""
    return dict(getattr(os.environ, "_data", os.environ))


def _set_environment(value: dict[Any, Any]) -> None:
    wanted = {os.fsdecode(name): os.fsdecode(variable) for name, variable in value.items()}
    for name in [name for name in os.environ if name not in wanted]:
        del os.environ[name]
    os.environ.update({name: variable for name, variable in wanted.items() if os.environ.get(name) != variable})


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109 (a path object takes longer)
    except FileNotFoundError:  # it was removed
        return None


def _set_working_directory(value: str | None) -> None:
    if value is not None:
        os.chdir(value)


_SIGNALS = tuple(sorted(signal.valid_signals()))
#: The function of C: the one in Python makes an enumeration of each handler.
_handler = getattr(sys.modules.get("_signal"), "getsignal", signal.getsignal)


def _handlers() -> list[Any]:
    return list(map(_handler, _SIGNALS))


def _set_handlers(value: list[Any]) -> None:
    if threading.current_thread() is not threading.main_thread():  # another thread can neither set one nor lose one
        return
    for number, before, now in zip(_SIGNALS, value, _handlers(), strict=True):
        if before is not None and before is not now:  # None: code outside Python has set it
            signal.signal(number, before)


def _set_path(value: tuple[str, ...]) -> None:
    sys.path[:] = value


def _exception_hooks() -> tuple[Any, ...]:
    return sys.excepthook, sys.unraisablehook, threading.excepthook


def _set_exception_hooks(value: tuple[Any, ...]) -> None:
    sys.excepthook, sys.unraisablehook, threading.excepthook = value


def _set_collector(mode: bool) -> None:  # noqa: FBT001 (as torch's setters)
    if mode:
        gc.enable()
    else:
        gc.disable()
