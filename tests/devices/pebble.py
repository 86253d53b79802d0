"""The device ``pebble``: a wrapper subclass, like the tensors of out-of-tree devices without storage.

A tensor of it has sizes, strides and a dtype, and no address: ``data_ptr()`` returns 0 or raises, by the release of
torch. The values are in a CPU tensor that it holds. Importing this module makes the device known to torch.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

known_limits = {
    "simulated": "the CPU computes",
    "sparse": "no sparse tensors",
    "complex": "no conj or neg views",
    "data": "p.data = q keeps the values of p, as torch replaces no tensor that a wrapper subclass holds",
}


class Pebble(Tensor):
    """A tensor on the device; ``host`` is the CPU tensor with its values."""

    host: Tensor

    @staticmethod
    def __new__(cls: type[Pebble], host: Tensor) -> Pebble:  # noqa: PYI034 (the class is final)
        made: Pebble = Tensor._make_wrapper_subclass(
            cls, host.shape, host.stride(), host.storage_offset(), dtype=host.dtype, device=torch.device("pebble", 0)
        )
        made.host = host
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Pebble({self.host!r})"

    def data_ptr(self) -> int:
        if "PEBBLE_CRASHES" in os.environ:  # as torch_xla does below autograd
            os.abort()
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")  # noqa: EM101, TRY003 (as opaque tensors raise)

    def untyped_storage(self) -> Any:
        raise NotImplementedError("Cannot access storage of Pebble")  # noqa: EM101 (as above)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return run(func, args, kwargs or {})


def _is_seen() -> bool:
    """Return whether a mode sees the called operation."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if isinstance(frame.f_locals.get("self"), TorchDispatchMode):
            return True
    return False


def run(func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation on the CPU tensors of its arguments; raise if device and CPU tensors are mixed."""
    if "PEBBLE_CRASHES_IF_SEEN" in os.environ and _is_seen():
        os.abort()
    hosts: dict[int, Pebble] = {}
    strangers: list[Tensor] = []

    def down(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, Pebble):
            hosts[id(value.host)] = value
            return value.host
        if isinstance(value, Tensor):
            strangers.append(value)
        return value

    requested = kwargs.get("device")
    called = tree_map(down, args), tree_map(down, {k: v for k, v in kwargs.items() if k != "pin_memory"})
    copies = func in {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}
    if hosts and not copies and any(one.dim() for one in strangers):
        msg = f"{func} got tensors on pebble and on {strangers[0].device}"
        raise RuntimeError(msg)
    found = func(*called[0], **called[1])
    if func.name() == os.environ.get("PEBBLE_WRONG"):
        found = tree_map(lambda value: value * 1.25 if isinstance(value, Tensor) else value, found)
    here = torch.device(requested).type == "pebble" if requested is not None else bool(hosts)

    def up(value: Any) -> Any:
        if not isinstance(value, Tensor) or not here:
            return value
        return hosts.get(id(value)) if id(value) in hosts else Pebble(value)

    return tree_map(up, found)


if "PEBBLE_CRASHES_IF_COUNTED" in os.environ:
    from gradconform.devices import register_device

    register_device("pebble", SimpleNamespace(peak_memory=lambda *_, **__: os.abort()))

_CONSTANTS = {
    "device_count": 1,
    "is_available": True,
    "is_initialized": True,
    "current_device": 0,
    "_is_in_bad_fork": False,
}
MODULE = SimpleNamespace(
    manual_seed_all=lambda _: None,
    synchronize=lambda _=None: None,
    get_rng_state=lambda _=None: torch.get_rng_state(),
    set_rng_state=lambda state, _=None: torch.set_rng_state(state),
    get_amp_supported_dtype=lambda: [torch.bfloat16],
    **{name: lambda value=value: value for name, value in _CONSTANTS.items()},
)
setup("pebble", backend_module=MODULE)
_LIBRARY = torch.library.Library("aten", "IMPL")


def _copy_from(source: Tensor, destination: Tensor, *_: Any) -> Tensor:
    """Copy from or to the device, below autograd, for ``torch.tensor(values, device="pebble")``."""
    (destination.host if isinstance(destination, Pebble) else destination).copy_(
        source.host if isinstance(source, Pebble) else source
    )
    return destination


_LIBRARY.impl("_copy_from", _copy_from, "PrivateUse1")
for _name in ("empty.memory_format", "empty_strided"):
    _packet, _, _overload = _name.partition(".")
    _op = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
    _LIBRARY.impl(_name, lambda *args, _op=_op, **kwargs: run(_op, args, kwargs), "PrivateUse1")
