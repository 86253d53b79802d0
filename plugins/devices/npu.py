"""The device ``npu`` of Huawei's Ascend chips, by torch_npu. Not run: written against torch_npu's documentation.

``gradconform run TARGET --device npu --device-plugin gradconform.plugins.devices.npu``
"""

from __future__ import annotations

import importlib
import importlib.util

from gradconform.devices import register_device


class NpuUnavailableError(ImportError):
    """torch_npu is not installed in this environment."""


class Npu:
    """Facts that the kit need not measure; otherwise ``torch.accelerator`` and ``torch.npu`` are used."""

    known_limits = {  # noqa: RUF012 (never written)
        "not run": "the kit was never run on this device",
        "processes_per_index": 64,
        "float64": "many kernels have none and fall back to the CPU; they are counted",
    }


if importlib.util.find_spec("torch_npu") is None:
    msg = "torch_npu is not installed; install the release that belongs to your torch and CANN, see its README"
    raise NpuUnavailableError(msg)
importlib.import_module("torch_npu")
register_device("npu", Npu())
