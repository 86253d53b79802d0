"""A simulated device in Python, ``simpy``: the smoke test if there is no compiler for simx.

Every operation is the CPU's kernel on the same bytes. A device tensor has a storage of its own, whose Python object
keeps the CPU's storage that owns the bytes. Importing this module makes the device known to torch.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree  # what torch's own Python backends walk arguments with

from gradconform.torch_releases import private_use
from gradconform.torch_releases.engine import wait_at_exit
from gradconform.torch_releases.names import require

NAME = "simpy"

known_limits = {
    "simulated": "the CPU computes",
    "indices": "only one",
    "generator": "random numbers are drawn from the CPU's generator",
    "convolution": "unsupported: torch calls one kernel for all of it, which does not exist",
    "lstm": "unsupported, like convolution; nn.GRU too",
    "copy.deepcopy": "ends the process for a tensor that is not a parameter: no allocator of storages",
    "errors": "an error in a backward ends the process: torch 2.10 to 2.15 guard the streams of such a device",
    "torch.save": "requires tensors on the CPU",
    "peak_memory": "its memory is not counted",
}

require(*private_use.IN_PYTHON)

_SET = torch.ops.aten.set_.source_Storage_storage_offset
#: Kernels that read and write only sizes and strides, so the CPU's are usable unchanged.
_VIEWS = frozenset(
    f"aten::{name}" for name in ("view", "as_strided", "_reshape_alias", "unfold", "view_as_real", "view_as_complex")
)
#: Arguments that may stay on the CPU, as on other accelerators.
_MAY_STAY = frozenset({"indices", "lengths", "batch_sizes"})


def synchronize(device: torch.device) -> None:
    """Do nothing: the CPU has finished when a call returns."""
    del device


class SimpyUnavailableError(ImportError):
    """The device simpy cannot be used in this process; the message gives the reason."""


class _Module:
    """``torch.simpy``: the functions that torch calls on a device's module."""

    _initialized = True

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def set_device(self, device: Any) -> None:
        del device

    def synchronize(self, device: Any = None) -> None:
        del device

    def manual_seed_all(self, seed: int) -> None:
        del seed  # torch.manual_seed has seeded the CPU's, from which is drawn

    def get_rng_state(self, device: Any = None) -> Tensor:
        del device
        return torch.get_rng_state()

    def set_rng_state(self, state: Tensor, device: Any = None) -> None:
        del device
        torch.set_rng_state(state)

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False


def _is_ours(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


def _on_host(tensor: Tensor) -> Tensor:
    """Return a CPU tensor on the bytes of a device tensor."""
    found = torch.empty(0, dtype=tensor.dtype)
    owner: Any = tensor.untyped_storage()
    found.set_(owner._simpy, tensor.storage_offset(), tensor.shape, tensor.stride())  # noqa: SLF001 (its own)
    found = found.conj() if tensor.is_conj() else found
    return found._neg_view() if tensor.is_neg() else found  # noqa: SLF001 (as said above)


def _on_device(host: Tensor, storage: Any = None) -> Tensor:
    """Return a device tensor on the bytes of a CPU tensor, in ``storage`` if a device tensor already has them."""
    if storage is None:
        owner = host.untyped_storage()
        storage = private_use.STORAGE_AT.find()(owner.data_ptr(), torch.device(NAME, 0), owner.nbytes())
        storage._simpy = owner  # noqa: SLF001 (ours)
    empty = private_use.EMPTY.find()((0,), host.dtype)
    made: Tensor = private_use.at_key(_SET, "CPU", empty, storage, host.storage_offset(), host.shape, host.stride())
    return made


class _Call:
    """One operation: converts its arguments to CPU tensors, and its results back."""

    def __init__(self, operation: Any, args: Any, kwargs: Any) -> None:
        self.operation, self.args, self.kwargs = operation, args, kwargs
        self.arguments: dict[int, tuple[Tensor, Tensor]] = {}
        self.storages: dict[int, Any] = {}
        self.leaves = _pytree.tree_leaves((args, kwargs))
        self.ours = any(map(_is_ours, self.leaves))

    def run(self) -> Any:
        self._refuse_mixture()
        args, kwargs = _pytree.tree_map(self._host, (self.args, self.kwargs))
        with torch.no_grad():
            found = self.operation(*args, **{name: value for name, value in kwargs.items() if name != "pin_memory"})
        places_here = any(isinstance(leaf, torch.device) and leaf.type == NAME for leaf in self.leaves)
        return _pytree.tree_map(self._device, found) if self.ours or places_here else found

    def _refuse_mixture(self) -> None:
        names = [argument.name for argument in self.operation._schema.arguments]  # noqa: SLF001 (as said above)
        given = [*zip(names, self.args, strict=False), *self.kwargs.items()]
        for name, value in given if self.ours else []:
            for leaf in _pytree.tree_leaves(value):
                if isinstance(leaf, Tensor) and not _is_ours(leaf) and leaf.ndim and name not in _MAY_STAY:
                    msg = (
                        "Expected all tensors to be on the same device, but found at least two devices, "
                        f"{NAME}:0 and {leaf.device}! ({self.operation})"
                    )
                    raise RuntimeError(msg)

    def _host(self, value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        if not _is_ours(value):
            return value
        host = _on_host(value)
        self.arguments[id(host)] = host, value  # keep the CPU tensor, so that its id is not reused
        self.storages[host.untyped_storage().data_ptr()] = value.untyped_storage()
        return host

    def _device(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        _, argument = self.arguments.get(id(value), (None, None))
        if argument is None:
            return _on_device(value, self.storages.get(value.untyped_storage().data_ptr()) if value.numel() else None)
        if argument.shape != value.shape or argument.untyped_storage().data_ptr() != value.untyped_storage().data_ptr():
            grown = _on_device(value)
            private_use.at_key(_SET, "CPU", argument, grown.untyped_storage(), 0, value.shape, value.stride())
        return argument


# Registrations last as long as these. mse_loss is registered alone, because torch's composition of it warns.
_ANY, _ATEN = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")


def _fallback(operation: Any, *args: Any, **kwargs: Any) -> Any:
    name = operation._schema.name  # noqa: SLF001 (as said above)
    if name in _VIEWS:
        return private_use.at_key(operation, "CPU", *args, **kwargs)
    if name == "aten::_copy_from":
        source, destination = args[:2]
        host = _on_host(destination) if _is_ours(destination) else destination
        host.copy_(_on_host(source) if _is_ours(source) else source)
        return destination
    if name == "aten::_local_scalar_dense":
        return _on_host(args[0]).item()
    return _Call(operation, args, kwargs).run()


def load() -> None:
    """Make ``simpy`` a device of this process; raise if torch's only slot for such devices is taken."""
    taken = private_use.TAKEN.find()()
    if taken == NAME:
        return
    if taken != "privateuseone":
        msg = f"the device simpy cannot be loaded: torch has room for one such device, and this process has {taken!r}"
        raise SimpyUnavailableError(msg)
    private_use.SET_UP.find()(NAME, backend_module=_Module())
    _ANY.fallback(_fallback, "PrivateUse1")
    _ATEN.impl("mse_loss", partial(_fallback, torch.ops.aten.mse_loss.default), "PrivateUse1")
    wait_at_exit()


load()
