"""The device ``xpu`` of Intel's GPUs, by torch's own backend. Not run: written against torch's documentation.

``gradconform run TARGET --device xpu --device-plugin gradconform.plugins.devices.xpu``
"""

from __future__ import annotations

from gradconform.devices import register_device


class Xpu:
    """Facts that the kit need not measure; otherwise ``torch.accelerator`` and ``torch.xpu`` are used."""

    known_limits = {  # noqa: RUF012 (never written)
        "not run": "the kit was never run on this device",
        "float64": "client GPUs emulate it or have none; the probe tries it",
    }


register_device("xpu", Xpu())
