"""The options on where a run is and in which dtypes, shared by the commands. Nothing here imports torch."""

from __future__ import annotations

import argparse

from gradconform.cli.parsing import SEVERAL

DEVICE_HELP = "cpu, cuda, cuda:1, npu:*, any other that torch or a plugin knows, auto, or all"


def add_devices(one: argparse.ArgumentParser) -> None:
    """Add ``--device``, ``--device-plugin``, ``--dtype`` and ``--flag``, each of which may be repeated."""
    one.add_argument("--device", **SEVERAL, metavar="DEVICE", help=f"where it runs: {DEVICE_HELP} (default: cpu)")
    add_device_plugin(one)
    one.add_argument(
        "--dtype",
        **SEVERAL,
        metavar="DTYPE",
        help="float64, float32, bfloat16, float16, or all that a device has (default: float32)",
    )
    one.add_argument(
        "--flag",
        **SEVERAL,
        metavar="NAME=VALUE",
        help="set a flag of torch that changes numbers, such as tf32=on or autocast=bfloat16 (default: torch's own)",
    )


def add_device_plugin(one: argparse.ArgumentParser) -> None:
    """Add ``--device-plugin`` alone."""
    one.add_argument(
        "--device-plugin",
        **SEVERAL,
        metavar="MODULE",
        help="import MODULE first, which makes a device usable that torch does not know",
    )
