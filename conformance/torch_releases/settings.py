"""Settings of the process that torch has no public question for: the default hooks on saved tensors."""

from __future__ import annotations

from .names import Name

_NEEDED = "shows whether default hooks on saved tensors are on"
#: The hooks that are on, None where there are none; what it is given is whether to ask while a graph is traced.
TOP = Name("torch._C._autograd", ("_top_saved_tensors_default_hooks",), _NEEDED)
POP = Name("torch._C._autograd", ("_pop_saved_tensors_default_hooks",), _NEEDED)


def hooks_on_saved_tensors() -> bool:
    """Tell whether default hooks on saved tensors are on; no, where this torch cannot tell."""
    return TOP.there() and TOP.find()(False) is not None  # noqa: FBT003 (torch's own)


def without_hooks_on_saved_tensors() -> None:
    """Take off the default hooks on saved tensors, all of them."""
    while hooks_on_saved_tensors():
        POP.find()()
