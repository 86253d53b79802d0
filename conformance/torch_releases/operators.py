"""torch's own lists of what is differentiable: one entry per operation, and one per module, with samples of each.

torch's tests are made of them. They are no public interface and may change or go; where they do, operations cannot be
judged one by one, and all else can.
"""

from __future__ import annotations

from .names import Name

_NEEDED = "lists the operations that --operation judges"

OPERATIONS = Name("torch.testing._internal.common_methods_invocations", ("op_db",), _NEEDED)
MODULES = Name("torch.testing._internal.common_modules", ("module_db",), _NEEDED)
