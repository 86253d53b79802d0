"""Deterministic algorithms, switched on and off without importing torch's compiler."""

from __future__ import annotations

import sys

import torch

from .names import Name

#: The function that ``torch.use_deterministic_algorithms`` calls after it imports ``torch._inductor.config``.
SWITCH = Name("torch._C", ("_set_deterministic_algorithms",), "switches deterministic algorithms")

_COMPILER = "torch._inductor"


def use_deterministic_algorithms(*, mode: bool, warn_only: bool) -> None:
    """Set the mode as ``torch.use_deterministic_algorithms`` does.

    Torch's function imports the compiler to set its configuration, which takes two seconds in each process. If nothing
    has imported the compiler, no code of a run is compiled, so only the switch is set.
    """
    if _COMPILER in sys.modules or not SWITCH.there():
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        SWITCH.find()(mode, warn_only=warn_only)
