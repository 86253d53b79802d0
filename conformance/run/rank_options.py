"""The options of the commands whose checks run in ranks that torch's launcher starts."""

from __future__ import annotations

from typing import Any

from gradconform.user_input.option import Option
from gradconform.user_input.values import count_named, count_read


def count_option(name: str, help: str, *, metavar: str = "N", default: int | None = None, **more: Any) -> Option:  # noqa: A002 (the field's name)
    """Return an option that takes a whole number from 1."""
    return Option(
        name=name, help=help, metavar=metavar, default=default, read=count_read, check=count_named(name), **more
    )


def device_option(what: str) -> Option:
    """Return the option for the device of ``what``."""
    return Option(name="device", metavar="DEVICE", default="cpu", check=str, help=f"put {what} on DEVICE")


RANKS_SHARE_DEVICE = Option(
    name="ranks_share_device",
    kind="switch",
    default=False,
    help="let several ranks share one device index; they communicate through gloo with copies on the CPU",
)

DTYPE = Option(name="dtype", metavar="DTYPE", default="float32", check=str, help="run in DTYPE")


def machine_options(next_port: str) -> tuple[Option, ...]:
    """Return the options for several machines; ``next_port`` says which ranks use the port after the given one."""
    return (
        count_option("nnodes", "use N machines; they share the ranks evenly", default=1),
        Option(
            name="rdzv_endpoint",
            metavar="HOST:PORT",
            default="localhost:0",
            check=str,
            help=f"let the machines meet at this address, as for torchrun; {next_port} the next port",
        ),
        Option(
            name="rdzv_id", metavar="ID", default="gradconform", check=str, help="give the machines a common run name"
        ),
    )
