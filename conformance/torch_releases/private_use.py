"""A custom device (``PrivateUse1``): the basis of the simulated devices in Python and in C++."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .names import Name, UnavailableError, installed

_IN_PYTHON = "makes a device in Python alone"
_ANY = "makes a device of one's own"
#: Not in 2.9 and before.
SET_UP = Name("torch.utils.backend_registration", ("_setup_privateuseone_for_python_backend",), _IN_PYTHON)
EMPTY = Name("torch:_C._acc", ("create_empty_tensor",), _IN_PYTHON)
STORAGE_AT = Name("torch:_C", ("_construct_storage_from_data_pointer",), _IN_PYTHON)
KEYS = Name("torch:_C", ("DispatchKey",), _IN_PYTHON)
AT_KEY = Name("torch:ops.aten.set_.source_Storage_storage_offset", ("_op_dk",), _IN_PYTHON)
TAKEN = Name("torch:_C", ("_get_privateuse1_backend_name",), _ANY)
REGISTER = Name("torch", ("_register_device_module",), _ANY)
HAS_KERNEL = Name("torch:_C", ("_dispatch_has_kernel_for_dispatch_key",), "says which operations reach a device")

IN_PYTHON = (SET_UP, EMPTY, STORAGE_AT, KEYS, AT_KEY, TAKEN)
IN_CPP = (TAKEN, REGISTER)


@dataclass(frozen=True, slots=True)
class InHeader:
    """A declaration in a torch header that a device in C++ needs to be built."""

    header: str
    name: str
    declared: str

    def find(self) -> None:
        """Raise :class:`~.names.UnavailableError` if the header is missing or does not declare the name."""
        path = Path(torch.__file__).parent / "include" / self.header
        if not path.is_file() or self.declared not in path.read_text(encoding="utf-8"):
            msg = f"torch {installed()} has no {self.name} in {self.header}, which a device in C++ is made of"
            raise UnavailableError(msg)


#: The first is not in 2.8 and before, the second not in 2.6.
HEADERS = (
    InHeader("c10/core/CachingDeviceAllocator.h", "c10::DeviceAllocator", "DeviceAllocator : public c10::Allocator"),
    InHeader("c10/util/Exception.h", "c10::AcceleratorError", "AcceleratorError : public"),
)


def at_key(operation: Any, key: str, *args: Any, **kwargs: Any) -> Any:
    """Call the kernel of ``operation`` for a dispatch key, such as ``CPU``, whatever device the arguments are on."""
    return AT_KEY.find(operation)(getattr(KEYS.find(), key), *args, **kwargs)


def is_private_use(device_type: str) -> bool:
    """Return whether a device type is the custom one that this process knows."""
    return TAKEN.there() and bool(TAKEN.find()() == device_type)


def has_kernel(operation: str, key: str) -> bool:
    """Return whether an overload, by its schema name, has a kernel of its own for a dispatch key.

    Without this test, every name would be accepted, and a fault in an operation that torch composes from others would
    never occur. An overload of TorchScript's own, such as ``aten::copy.t``, has no kernel.
    """
    try:
        return bool(HAS_KERNEL.find()(operation, key))
    except RuntimeError:
        return False
