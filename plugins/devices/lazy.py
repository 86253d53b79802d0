"""The device ``lazy`` of every torch: operations are recorded, and run when a value is read.

Importing this module starts torch's TorchScript backend for it, which computes on the CPU.
"""

from __future__ import annotations

import torch
from torch import _lazy  # underscored, as all of this device is; where it goes, the device goes with it
from torch._lazy import ts_backend

known_limits = {
    "simulated": "TorchScript runs the recorded operations on the CPU",
    "checkpoint": "torch.utils.checkpoint imports torch.lazy, a module that torch does not have",
    "generator": "no torch.Generator of this device: torch.manual_seed seeds all its random numbers",
    "lstm": "nn.LSTM and nn.GRU make their first hidden state on the CPU, which this device refuses",
    "as_strided": "no such view",
    "sparse": "no sparse tensors",
    "layout": "every tensor is contiguous",
    "unused parts": "for unused parts of an output, torch makes zeros on the CPU",
    "expanded gradients": "in-place addition to a tensor of strides 0, such as a sum's gradient, adds once per element",
    "storage": "a tensor has no storage and no address, so shared memory cannot be seen",
    "peak_memory": "its memory is not counted",
}

ts_backend.init()


def device_count() -> int:
    """Return 1: all indices are one CPU."""
    return 1


def synchronize(device: torch.device) -> None:
    """Run the recorded operations, and wait for them."""
    _lazy.mark_step(f"lazy:{device.index or 0}", wait=True)
    _lazy.wait_device_ops()  # of all indices: it takes no names yet
