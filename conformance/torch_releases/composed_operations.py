"""Operations that torch composes from others on a device without a kernel of its own for them."""

from __future__ import annotations

from typing import Any

from .names import Name
from .private_use import AT_KEY, KEYS, at_key, has_kernel

_NEEDED = "says which operations torch composes of others"
KEY_OF = Name("torch:_C", ("_dispatch_key_for_device",), _NEEDED)

#: The keys of kernels that call other operations through the dispatcher. Most kernels of the first key only call the
#: same operation's form that writes into a given tensor.
_OUT_FORM = "CompositeExplicitAutogradNonFunctional"
_COMPOSING = ("CompositeExplicitAutograd", _OUT_FORM, "CompositeImplicitAutograd")


def is_composed(operation: Any, device_type: str) -> bool:
    """Return whether torch runs an overload on a device type with a kernel that calls other operations."""
    return _composing(operation, device_type) is not None


def is_only_composed(operation: Any, device_type: str) -> bool:
    """Return whether an overload's only kernels are those that call operations of other names."""
    return _composing(operation, device_type) not in {None, _OUT_FORM}


def run_composed(operation: Any, device_type: str, *args: Any, **kwargs: Any) -> Any:
    """Run the kernel of :func:`is_composed`; a dispatch mode that is active sees each operation that it calls."""
    return at_key(operation, _composing(operation, device_type) or "", *args, **kwargs)


def _composing(operation: Any, device_type: str) -> str | None:
    if not (KEY_OF.there() and KEYS.there() and AT_KEY.there(operation)):
        return None
    name = operation.name()
    try:
        own = str(KEY_OF.find()(device_type))
    except RuntimeError:  # the device type has no key
        return None
    if has_kernel(name, own):
        return None
    return next((key for key in _COMPOSING if has_kernel(name, key)), None)
