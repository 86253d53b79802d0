"""Deterministic algorithms, switched on and off without an import of torch's compiler."""

from __future__ import annotations

import sys

import torch

from .names import Name

#: What ``torch.use_deterministic_algorithms`` calls, after it has imported ``torch._inductor.config``.
SWITCH = Name("torch._C", ("_set_deterministic_algorithms",), "switches deterministic algorithms")

_COMPILER = "torch._inductor"


def use_deterministic_algorithms(*, mode: bool, warn_only: bool) -> None:
    """Do what ``torch.use_deterministic_algorithms`` does.

    Torch's function imports the compiler to set its configuration, which takes two seconds in each process. If nothing
    has imported the compiler, nothing of a run is compiled, and only the switch is set.
    """
    if _COMPILER in sys.modules or not SWITCH.there():
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        SWITCH.find()(mode, warn_only=warn_only)
