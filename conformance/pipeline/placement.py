"""Placement of a pipeline's ranks: an index for each, and the backend with which they communicate."""

from __future__ import annotations

import torch
import torch.distributed as dist

from gradconform.devices.device import device_of
from gradconform.text.counts import count
from gradconform.user_input.values import SelectionError

from .cpu_copies import HOST_COPIES


def backend_for(name: str, ranks: int, *, share: bool = False) -> str:
    """Return the backend with which ``ranks`` of this machine communicate on the device ``name``.

    It is torch.distributed's backend for the device type. It is gloo over copies on the CPU if there is none, or if
    ranks ``share`` an index. A name with an index means that index, and one without means all of its type; the CPU
    takes any number of ranks. Raises :class:`~gradconform.user_input.values.SelectionError` before any process starts
    if there are more ranks than indices and they do not share.
    """
    device = torch.device(name)
    if device.type == "cpu":
        return dist.get_default_backend_for_device(device)
    indices = 1 if ":" in name else device_of(device).device_count()
    if ranks > indices and not share:
        msg = (
            f"{ranks} ranks on this machine are too many for device {name!r}: it has "
            f"{count(indices, 'index', 'indices')}. Use fewer ranks, more machines (--nnodes), or "
            "--ranks-share-device (gloo with copies on the CPU)"
        )
        raise SelectionError(msg)
    if share:
        return HOST_COPIES
    try:
        return dist.get_default_backend_for_device(device)
    except ValueError:
        return HOST_COPIES
