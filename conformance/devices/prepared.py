"""Devices ready for use in this process: imported, tried, and each on this worker's index."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import torch

from gradconform.torch_releases.engine import wait_at_exit
from gradconform.user_input.values import SelectionError, UnusableDeviceError

from .choice import DeviceChoice, one_cell
from .device import device_of
from .flags import refuse_autocast
from .probe_questions import Asker, read_gradient
from .registry import load_plugins
from .tensor_facts import facts_withheld, withhold

if TYPE_CHECKING:
    from .copies import Reading

#: Set by worker processes of the command, and by pytest-xdist in its own workers.
WORKER_VARIABLE = "GRADCONFORM_WORKER"
_XDIST_VARIABLE = "PYTEST_XDIST_WORKER"


def device_named(name: str | torch.device, plugins: Iterable[str] = ()) -> torch.device:
    """Return the device after trying it; ``plugins`` are imported first.

    Raises :class:`~gradconform.user_input.values.SelectionError` that quotes the call that failed and names the devices
    that work.
    """
    choice = one_cell(name, "float32", plugins)
    ready(choice)
    return device_here(choice, choice.devices[0])


def ready(choice: DeviceChoice, flags: Mapping[str, str] | None = None) -> None:
    """Make the devices of ``choice`` usable in this process; the CPU needs nothing.

    Raises :class:`~gradconform.user_input.values.SelectionError` if one cannot be used here, or not with ``flags``.
    """
    types = tuple(device_type for device_type in choice.types if device_type != "cpu")
    if choice.plugins or types:
        load_plugins(choice.plugins, types)
    for probe in choice.probes:
        withhold(probe.type, {*facts_withheld(probe.type), *probe.hides})
    for device in choice.devices:
        here = device_here(choice, device)
        _try(here)
        used, probed = device_of(here), choice.probe_of(str(here))
        used.numerics = choice.numerics_of(str(here))
        if probed is not None:
            used.reads_views, used.wrong_copies = cast("Reading", probed.reads_views), frozenset(probed.wrong_copies)
        used.ends_where_a_backward_raises = probed is not None and probed.ends_where_a_backward_raises
    refuse_autocast(flags or {}, choice.types)


def _try(device: torch.device) -> None:
    """Raise if a device that works in a separate process cannot be used in this one."""
    if device.type == "cpu":
        return
    wait_at_exit()
    question = f"x.grad.cpu() of x = torch.ones(2, device={str(device)!r}, requires_grad=True)"
    answer = Asker().ask(question, partial(read_gradient, str(device)))
    try:
        _ = device_of(device).tolerances
    except ValueError as error:
        msg = f"the device object of {device.type!r} cannot be used: {error}"
        raise SelectionError(msg) from error
    if not answer.ok:
        msg = (
            f"device {str(device)!r} works in a new process, but not in this one: {answer.message}. "
            "torch must know a device before the first backward of a process; import the device's module earlier"
        )
        raise UnusableDeviceError(msg)


def device_here(choice: DeviceChoice, device: str) -> torch.device:
    """Return the device on which this process runs the checks planned for ``device``."""
    return torch.device(index_of(device, choice.indices, worker_number()))


def worker_number() -> int:
    """Return the number of this worker process, from 0; 0 in other processes."""
    name = os.environ.get(WORKER_VARIABLE) or os.environ.get(_XDIST_VARIABLE, "").removeprefix("gw")
    return int(name) if name.isdigit() else 0


def index_of(device: str, indices: Mapping[str, Sequence[str]], worker: int) -> str:
    """Return the index on which a worker runs the checks planned for ``device``; workers take its indices in turn."""
    several = indices.get(device, ())
    return several[worker % len(several)] if several else device
