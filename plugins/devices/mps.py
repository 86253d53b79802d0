"""The device ``mps`` of Apple's chips, by torch's own backend. Not run: written against torch's documentation.

``gradconform run TARGET --device mps --device-plugin gradconform.plugins.devices.mps``
"""

from __future__ import annotations

import torch

from gradconform.devices import register_device


class Mps:
    """Facts that the kit need not measure: MPS has one index, no float64, and no peak of memory."""

    dtypes = ("float32", "bfloat16", "float16")
    known_limits = {  # noqa: RUF012 (never written)
        "not run": "the kit was never run on this device",
        "float64": "Metal has no float64, so reference64 is computed on the CPU",
        "peak_memory": "torch.mps counts allocated memory without a peak, so live tensors are counted",
        "operations": "PYTORCH_ENABLE_MPS_FALLBACK=1 runs those that MPS lacks on the CPU; they are counted",
    }

    def device_count(self) -> int:
        """Return 1 on a Mac with Metal, else 0."""
        return int(torch.backends.mps.is_available())

    def synchronize(self, device: torch.device) -> None:
        """Wait for all kernels."""
        del device
        torch.mps.synchronize()


register_device("mps", Mps())
