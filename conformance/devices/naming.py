"""One device by name, ready for use in this process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import torch

from gradconform.devices.asking import Asker
from gradconform.devices.choice import Choice, choose
from gradconform.devices.device import device_of
from gradconform.devices.plugins import load_plugins
from gradconform.devices.questions import read_gradient
from gradconform.devices.selection import SelectionError, UnusableDeviceError
from gradconform.devices.sharing import place_of, worker_number
from gradconform.numeric_flags import refuse_autocast


def device_named(name: str | torch.device, plugins: Iterable[str] = ()) -> torch.device:
    """Return the device after trying it; ``plugins`` are imported first.

    Raises :class:`~gradconform.devices.SelectionError` that quotes the call that failed and names the devices that
    work.
    """
    choice = one_cell(name, "float32", plugins)
    ready(choice)
    return placed(choice, choice.devices[0])


def one_cell(device: object, dtype: object, plugins: Iterable[str] = ()) -> Choice:
    """Return the choice of one device and one dtype; raise for names that stand for several."""
    choice = choose((device,), (dtype,), plugins=plugins)
    if len(choice.cells) != 1:
        told = ", ".join(" ".join(cell) for cell in choice.cells)
        msg = f"{str(device)!r} and {str(dtype)!r} stand for {told}; name one of them"
        raise SelectionError(msg)
    return choice


def ready(choice: Choice, flags: Mapping[str, str] | None = None) -> None:
    """Make the devices of ``choice`` usable in this process; the CPU is.

    Raises :class:`~gradconform.devices.SelectionError` where one cannot be used here, or not with ``flags``.
    """
    types = tuple(device_type for device_type in choice.types if device_type != "cpu")
    if choice.plugins or types:
        load_plugins(choice.plugins, types)
    for device in choice.devices:
        _try(placed(choice, device))
    refuse_autocast(flags or {}, choice.types)


def _try(device: torch.device) -> None:
    """Raise where a device that can be used in a process of its own cannot be used in this one."""
    if device.type == "cpu":
        return
    question = f"x.grad.cpu() of x = torch.ones(2, device={str(device)!r}, requires_grad=True)"
    answer = Asker().ask(question, partial(read_gradient, str(device)))
    try:
        _ = device_of(device).tolerances
    except ValueError as error:
        msg = f"the device object of {device.type!r} cannot be used: {error}"
        raise SelectionError(msg) from error
    if not answer.ok:
        msg = (
            f"device {str(device)!r} can be used in a process of its own, but not in this one: {answer.message}. "
            "A device has to be known to torch before the first backward of a process: import what makes it known first"
        )
        raise UnusableDeviceError(msg)


def placed(choice: Choice, device: str) -> torch.device:
    """Return where this process runs what is planned for ``device``."""
    return torch.device(place_of(device, choice.places, worker_number()))
