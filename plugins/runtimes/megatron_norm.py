"""The norm by which Megatron-core's optimizers clip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from gradconform.adapter import needed

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core import parallel_state
    from megatron.core.optimizer.clip_grads import get_grad_norm_fp32
    from megatron.core.tensor_parallel import param_is_not_tensor_parallel_duplicate
    from megatron.core.transformer.module import param_is_not_shared


def joint_norm(parameters: Iterable[nn.Parameter], grad_of: Callable[[Any], Tensor | None]) -> float:
    """Return the norm over all ranks that have a part of the model, without the copies of a gradient.

    Experts have an optimizer of their own, whose norm covers the ranks with other experts too.
    """
    dense: list[Tensor] = []
    experts: list[Tensor] = []
    for one in parameters:
        counted = param_is_not_shared(one) and param_is_not_tensor_parallel_duplicate(one)
        grad = grad_of(one)
        if grad is not None and counted:
            (dense if getattr(one, "allreduce", True) else experts).append(grad)
    groups = (
        parallel_state.get_model_parallel_group(),
        parallel_state.get_expert_tensor_model_pipeline_parallel_group(),
    )
    norms = [get_grad_norm_fp32(own, grad_stats_parallel_group=group)
             for own, group in zip((dense, experts), groups, strict=True)]  # fmt: skip
    return math.hypot(*norms)
