"""Devices and dtypes that a user names: found by trying, refused with what could be named instead."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The dtypes that a run can be asked for.
DTYPES: dict[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


class SelectionError(ValueError):
    """Something was asked for that does not exist or cannot be used: a check, a profile, a device or a dtype."""


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return the names nearest to ``name``, for an error message; all of them where none is near.

    A name that holds what was typed is nearer than one that is spelled alike: of a long id a user has a part.
    """
    names = sorted(known)
    part = name.strip("*?.")
    holding = [known_name for known_name in names if part and part in known_name]
    return ", ".join(holding[:count] or difflib.get_close_matches(name, names, n=count, cutoff=0.4) or names)


def dtype_named(dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype; raise :class:`SelectionError` for one that the kit does not run in."""
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        msg = f"dtype {name!r} is not one the contract runs in; expected one of {nearest(name, DTYPES)}"
        raise SelectionError(msg)
    return DTYPES[name]


def usable_devices() -> list[str]:
    """Return the devices that can be named here: the CPU, and the accelerator torch knows of, by index."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    found = [f"{accelerator.type}:{index}" for index in range(torch.accelerator.device_count())] if accelerator else []
    return ["cpu", *found]


def device_named(name: str | torch.device) -> torch.device:
    """Return the device after one computation with a backward on it.

    Raises :class:`SelectionError` that quotes the call that failed and names the devices that work.
    """
    try:
        device = torch.device(name)
        probe = torch.ones(2, device=device, requires_grad=True)
        (probe * probe).sum().backward()
        if probe.grad is None or probe.grad.cpu().tolist() != [2.0, 2.0]:
            msg = f"device {str(name)!r} computed a wrong gradient of x * x: {probe.grad}"
            raise SelectionError(msg)
    except (RuntimeError, AssertionError, TypeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        msg = f"device {str(name)!r} cannot be used: {first}; usable here: {', '.join(usable_devices())}"
        raise SelectionError(msg) from error
    return device
