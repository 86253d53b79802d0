"""Distributed tensors, and the private names around them that place experts on ranks.

Importing their module takes most of a second, and no such tensor exists before.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .names import Name

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor
    from typing_extensions import TypeIs

_OF_EXPERTS = "divides experts over replicas"
#: With the backward that sends gradients back the same way.
ALL_TO_ALL = Name("torch.distributed._functional_collectives", ("all_to_all_single_autograd",), _OF_EXPERTS)
#: Takes a module and the names of its parameters that DistributedDataParallel leaves to others.
IGNORE = Name(
    "torch.nn.parallel:DistributedDataParallel", ("_set_params_and_buffers_to_ignore_for_model",), _OF_EXPERTS
)


def is_distributed(value: Any) -> TypeIs[DTensor]:
    """Return whether a value is a distributed tensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)
