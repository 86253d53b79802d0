"""Making simx known to torch, and setting its options."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Iterator

import torch
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from gradconform.plugins.devices.simx import torch_module
from gradconform.plugins.devices.simx.building import SimxUnavailableError, library
from gradconform.plugins.devices.simx.options import from_arguments, from_environment

NAME = "simx"

#: Autograd's thread of a device needs the interpreter for a moment after a backward has returned. A process that ends
#: within that moment aborts (seen in 16 of 25 short scripts on a busy machine, and in none with this wait at the end).
_LAST_MOMENT = 0.1  # seconds

_options: dict[str, str] = {}


def load() -> None:
    """Build the library where it is not built yet, and make ``simx`` a device of this process, with SIMX_ options.

    Does nothing where that is done. Raises :class:`SimxUnavailableError` where there is no compiler, or where the
    process has another device of this kind, and ``ValueError`` for an option that is none.
    """
    # Private, as is every way to ask: torch has room for one device outside its own tree, and renames it once.
    taken = torch._C._get_privateuse1_backend_name()  # noqa: SLF001 (as said above)
    if taken == NAME:
        return
    if taken != "privateuseone":
        msg = f"the device simx cannot be loaded: torch has room for one such device, and this process has {taken!r}"
        raise SimxUnavailableError(msg)
    options = from_environment(os.environ)
    torch.ops.load_library(str(library()))
    configure(**options)
    torch.ops.simx.start()
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, torch_module)  # noqa: SLF001 (what torch documents for such a device)
    generate_methods_for_privateuse1_backend(for_storage=True)
    atexit.register(time.sleep, _LAST_MOMENT)


def configure(**options: str | int) -> None:
    """Set all options of the device anew, those not named to none, and count its operations from 0 again.

    The number of devices stays unless it is named. Raises ``ValueError`` for an option that is none.
    """
    wanted = from_arguments({"devices": _options.get("devices", "2"), **options})
    torch.ops.simx.configure(wanted)
    _options.clear()
    _options.update(wanted)


@contextlib.contextmanager
def inject(**options: str | int) -> Iterator[None]:
    """Set some options for a while, with what is set already; operations count from 0 at both ends.

    Raises ``ValueError`` for an option that is none, and for ``devices``, which is fixed once loaded.
    """
    if "devices" in options:
        msg = f"simx has {_options['devices']} devices in this process; set SIMX_DEVICES before it is loaded"
        raise ValueError(msg)
    before = dict(_options)
    configure(**{**before, **options})
    try:
        yield
    finally:
        configure(**before)
