"""A simulated accelerator, ``simx``: host memory and the CPU's kernels behind a device of its own, healthy or faulty.

Importing this module builds the library on first use and makes the device known to torch. It has no object of its own
for synchronising, seeding and measuring: all of that works the generic way, by torch's module of the device.

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
