"""A simulated accelerator, ``simx``: CPU memory and kernels as a separate device, healthy or faulty.

Importing this module builds the library on first use and registers the device with torch. It needs no device object:
synchronising, seeding and measuring use torch's module of the device.

>>> from gradconform.plugins.devices import simx  # doctest: +SKIP
>>> with simx.inject(wrong="aten::mm:transpose"):  # doctest: +SKIP
...     torch.ones(2, 2, device="simx:1") @ weight
"""

from __future__ import annotations

from .library import SimxUnavailableError, configure, inject, load
from .options import OPTIONS, Option

__all__ = ["OPTIONS", "Option", "SimxUnavailableError", "configure", "inject", "known_limits", "load"]

known_limits = {
    "simulated": "the CPU computes",
    "sparse": "no sparse tensors: torch has no sparse storage for a device of this kind",
    "pinned memory": "pin_memory raises: the device has no memory to pin",
    "speed": "every operation is one of the CPU with a copy of its result: nothing here is as fast as the CPU",
}

load()
