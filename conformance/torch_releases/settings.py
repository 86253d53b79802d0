"""Process settings that torch has no public query for: hooks on saved tensors, default device, float32 precision."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from .names import Name

_NEEDED = "shows whether default hooks on saved tensors are on"
#: The current hooks, None if there are none; its argument says whether to look while a graph is traced.
TOP = Name("torch._C._autograd", ("_top_saved_tensors_default_hooks",), _NEEDED)
POP = Name("torch._C._autograd", ("_pop_saved_tensors_default_hooks",), _NEEDED)

#: Holds what ``torch.set_default_device`` has set: :func:`torch.get_default_device` also reports a surrounding context.
DEVICE_CONTEXT = Name("torch", ("_GLOBAL_DEVICE_CONTEXT",), "holds the default device")

_PRECISION = "reads and sets the precision of float32"
#: Of a backend and an operation. Releases before 2.9 set TF32 by the switches below.
GET_PRECISION = Name("torch._C", ("_get_fp32_precision_getter",), _PRECISION)
SET_PRECISION = Name("torch._C", ("_set_fp32_precision_setter",), _PRECISION)
_PLACES = (
    ("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn"), ("mkldnn", "all"),
    ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn"),
)  # fmt: skip
_BACKENDS, _OPERATIONS = zip(*_PLACES, strict=True)


def hooks_on_saved_tensors() -> bool:
    """Return whether default hooks on saved tensors are on; False if this torch cannot say."""
    top = _found(TOP)
    return top is not None and top(False) is not None  # noqa: FBT003 (torch's own)


def without_hooks_on_saved_tensors() -> None:
    """Remove all default hooks on saved tensors."""
    while hooks_on_saved_tensors():
        POP.find()()


def default_device() -> torch.device | None:
    """Return the device that ``torch.set_default_device`` has set; None if it has set none."""
    context = getattr(_found(DEVICE_CONTEXT), "device_context", None)
    return None if context is None else context.device


@cache
def _found(name: Name) -> Any:
    """Return the object of a name; None if this torch lacks it. Settings are read around every run of a target."""
    return name.find() if name.there() else None


def float32_precisions() -> tuple[Any, ...]:
    """Return the precision of float32 of all operations, as :func:`set_float32_precisions` takes it."""
    get = _found(GET_PRECISION)
    own = () if get is None else tuple(map(get, _BACKENDS, _OPERATIONS))
    return _cudnn_tf32(), *own


def _cudnn_tf32() -> bool | None:
    """Return the older switch, which torch keeps apart; None if the newer ones have values that it cannot express."""
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def set_float32_precisions(wanted: tuple[Any, ...]) -> None:
    """Set the precision of float32 of all operations; one that follows another need not be set itself."""
    switch, *own = wanted
    if switch is not None and switch is not _cudnn_tf32():
        torch.backends.cudnn.allow_tf32 = switch
    if own:
        get, put = _found(GET_PRECISION), _found(SET_PRECISION)
        for place, value in zip(_PLACES, own, strict=True):
            if get(*place) != value:
                put(*place, value)
