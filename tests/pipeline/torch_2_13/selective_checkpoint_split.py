"""A split backward fails with selective activation checkpointing: W runs again what I ran, which is refused.

``stage_backward_weight`` goes through the nodes between parameters and inputs once more. What selective activation
checkpointing keeps is let go of when it is first read, and the second time raises RuntimeError ("Trying to backward an
extra time"); without ``context_fn`` the same checkpoint works, and so does autograd's full backward with it.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

stage = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
kept = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])


def split(**options: Any) -> RuntimeError | None:
    """Run I and W of the stage in a checkpoint; return what was raised."""
    x = torch.randn(3, 4, requires_grad=True)
    y = checkpoint(stage, x, use_reentrant=False, **options)
    try:
        _, groups = stage_backward_input([y], [torch.ones_like(y)], [x], stage.parameters())
        stage_backward_weight(stage.parameters(), groups)
    except RuntimeError as error:
        return error
    return None


x = torch.randn(3, 4, requires_grad=True)
checkpoint(stage, x, use_reentrant=False, context_fn=kept).sum().backward()
assert split() is None
error = split(context_fn=kept)
print(f"expected gradients, got {error!r}")
raise SystemExit(error is not None)
