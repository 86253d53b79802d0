"""Torch's context-parallel attention as sharded stages: its ring, and its style that gathers keys for flex attention.

``context_parallel`` knows CUDA's operators alone, so this module gives the CPU's to the ring that it runs. Flex
attention has no backward on a CPU, so the attention over gathered keys is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn import functional as F

from gradconform.adapter import needed

with needed("the context-parallel attention of torch", "pip install 'torch>=2.13'"):
    from torch.distributed.tensor.experimental._context_parallel._attention import (
        _ContextParallel,
        _cp_options,
        _templated_ring_attention,
        _templated_ring_attention_backward,
        set_rotate_method,
    )

WIDTH, HEADS, POSITIONS, ROWS = 16, 4, 16, 2
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001 (operators have such names)
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001 (as above)
SEQUENCE = 2  # the dimension of positions in queries, keys and values


class _Attention(nn.Module):
    """Causal attention on one process."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


class _Layer(nn.Module):
    """Projections around an attention."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.attention = attention

    def forward(self, value: Tensor) -> Tensor:
        rows, positions, _ = value.shape
        query, key, content = self.qkv(value).reshape(rows, positions, HEADS, 3, -1).permute(3, 0, 2, 1, 4)
        found: Tensor = self.proj(self.attention(query, key, content).transpose(1, SEQUENCE).flatten(2))
        return found


class _RingFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        out, logsumexp = _templated_ring_attention(
            group, SEQUENCE, _FORWARD, query, key, value, is_causal=True, dropout_p=0.0
        )
        ctx.group = group
        ctx.save_for_backward(query, key, value, out, logsumexp)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, logsumexp = ctx.saved_tensors
        found = _templated_ring_attention_backward(
            ctx.group, SEQUENCE, _BACKWARD, grads[0], "grad_out", query, key, value, out, logsumexp, is_causal=True,
            dropout_p=0.0,
        )  # fmt: skip
        return *found, None


class _Ring(nn.Module):
    """Causal attention of this rank's queries to the keys of all ranks, which go round."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found: Tensor = _RingFunction.apply(query, key, value, self.group)  # type: ignore[no-untyped-call] # so is torch's
        return found


class _OfGathered(nn.Module):
    """Causal attention of this rank's queries to keys of all ranks, which torch's style gathers."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        own, positions = query.shape[SEQUENCE], key.shape[SEQUENCE]
        seen = torch.ones(own, positions, dtype=torch.bool, device=query.device).tril(self.rank * own)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)


def from_both_ends(whole: Tensor, coordinate: Mapping[str, int], sizes: Mapping[str, int]) -> Tensor:
    """Return a rank's positions as torch balances a causal mask: one piece from the head and one from the tail."""
    pieces = whole.chunk(2 * sizes["cp"], 1)
    return torch.cat([pieces[coordinate["cp"]], pieces[-1 - coordinate["cp"]]], 1)


class _Divided:
    """Attention over a sequence that is divided over the ranks; each has all parameters."""

    mesh = {"cp": (2, 4)}
    placements = dict.fromkeys(("qkv.weight", "proj.weight", "proj.bias"), Replicate())
    arg_placements: tuple[Any, ...] = (Shard(1),)
    output_placements: tuple[Any, ...] = (Shard(1),)

    def whole(self) -> nn.Module:
        """Return the layer on one process."""
        return _Layer(_Attention())

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return hidden states of shape (rows, positions, width)."""
        return (torch.randn(ROWS, POSITIONS, WIDTH, generator=generator),)

    def finish(self, module: nn.Module) -> None:
        """Sum the gradients that each rank has for its positions alone."""
        for one in module.parameters():
            if one.grad is not None:
                dist.all_reduce(one.grad)


class RingAttention(_Divided):
    """The ring that ``context_parallel`` runs for ``scaled_dot_product_attention``."""

    name = "torch-ring-attention"
    options = {"balanced": (False, True), "rotation": ("allgather", "alltoall")}

    def __init__(self, *, balanced: bool = False, rotation: str = "allgather") -> None:
        """Choose whether each rank has equal work under the causal mask, and the collective that moves keys."""
        self.balanced, self.rotation = balanced, rotation
        if balanced:
            self.arg_placements = self.output_placements = (from_both_ends,)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return the layer with the ring, and set torch's options for it."""
        set_rotate_method(self.rotation)
        _cp_options.enable_load_balance = self.balanced
        return _Layer(_Ring(mesh.get_group("cp")))


class GatheredAttention(_Divided):
    """Attention under the context-parallel style that torch has for ``flex_attention``."""

    name = "torch-gathered-attention"

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return the layer, whose attention gathers keys and values."""
        style = _ContextParallel(SEQUENCE, _ContextParallel.AttentionType.FLEX)
        return _Layer(parallelize_module(_OfGathered(mesh["cp"].get_local_rank()), mesh["cp"], style))
