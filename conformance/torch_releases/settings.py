"""Process settings that torch has no public query for: the default hooks on saved tensors."""

from __future__ import annotations

from .names import Name

_NEEDED = "shows whether default hooks on saved tensors are on"
#: The current hooks, None if there are none; its argument says whether to look while a graph is traced.
TOP = Name("torch._C._autograd", ("_top_saved_tensors_default_hooks",), _NEEDED)
POP = Name("torch._C._autograd", ("_pop_saved_tensors_default_hooks",), _NEEDED)


def hooks_on_saved_tensors() -> bool:
    """Return whether default hooks on saved tensors are on; False if this torch cannot say."""
    return TOP.there() and TOP.find()(False) is not None  # noqa: FBT003 (torch's own)


def without_hooks_on_saved_tensors() -> None:
    """Remove all default hooks on saved tensors."""
    while hooks_on_saved_tensors():
        POP.find()()
