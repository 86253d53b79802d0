"""Whether the ranks of a pipeline fit on a device: an index each, and a backend that they can communicate with."""

from __future__ import annotations

import torch
import torch.distributed as dist

from gradconform.devices.device import device_of
from gradconform.naming import SelectionError, UnusableDeviceError


def refuse_misplaced(name: str, ranks: int) -> None:
    """Raise before any process starts if ``ranks`` of this machine cannot run on the device ``name``.

    A name with an index stands for that one, and one without for all of its type; the CPU takes any number of ranks.
    Raises :class:`~gradconform.naming.UnusableDeviceError` where torch.distributed has no communication backend for the
    type of device, and :class:`~gradconform.naming.SelectionError` where there are more ranks than indices.
    """
    device = torch.device(name)
    if device.type == "cpu":
        return
    try:
        backend = dist.get_default_backend_for_device(device)
    except ValueError as error:
        msg = (
            f"device {name!r} cannot run a pipeline: torch.distributed has no communication backend for "
            f"{device.type!r}; expected one that its package registers, as nccl is for 'cuda'. Use --device cpu"
        )
        raise UnusableDeviceError(msg) from error
    indices = 1 if ":" in name else device_of(device).device_count()
    if ranks > indices:
        msg = (
            f"{ranks} ranks on this machine are too many for device {name!r}: it has {indices} "
            f"{'index' if indices == 1 else 'indices'}, and {backend} needs one for each rank. Use fewer ranks, "
            "more machines by --nnodes, or --device cpu"
        )
        raise SelectionError(msg)
