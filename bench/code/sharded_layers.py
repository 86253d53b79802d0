"""Layers divided over tensor ranks: what their backward sums over the ranks, and what the engine sums afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement
from torch.nn import functional as F

from gradconform.reference.sharded.regions import copy_in, gather_in, gathered, own_part, reduce_out, summed
from gradconform.reference.tensor_parallel import region

_WIDTH, _HEADS, _SIZE, _ROWS, _POSITIONS = 6, 4, 4, 2, 4


class _Layer:
    """A sharded stage: ``whole_class`` on one process, and ``module``, one rank's part."""

    mesh = {"tp": (2,)}
    whole_class: type[nn.Module]
    module: type[nn.Module]
    rows: Sequence[int] = (_ROWS, _POSITIONS, _WIDTH)

    def whole(self) -> nn.Module:
        """Return the layer on one process."""
        return self.whole_class()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's part."""
        return self.module(mesh.get_group("tp"))

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return inputs of the shape ``rows``."""
        return (torch.randn(self.rows, generator=generator),)


def _sum_grads(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sum gradients over the ranks of a group, where there are any."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)


class _Rowwise(nn.Module):
    """A layer whose input is divided. The bias is added before the sum over the ranks, so each adds a part of it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.linear = nn.Linear(_WIDTH // group.size(), _WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return reduce_out(F.linear(value, self.linear.weight, self.bias_part(self.linear.bias)), self.group)

    def bias_part(self, bias: Tensor) -> Tensor:
        """Return the bias divided by the number of ranks, with the gradient of the whole one."""
        return bias + (bias / self.group.size() - bias).detach()


class _RowwiseDivided(_Rowwise):
    def bias_part(self, bias: Tensor) -> Tensor:
        return bias / self.group.size()


class _WholeLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.linear(value)
        return found


class RowwiseBias(_Layer):
    """torchtitan-4332, fixed: the division of the bias has no gradient."""

    placements = {"linear.weight": Shard(1), "linear.bias": Replicate()}
    arg_placements = (Shard(2),)
    whole_class = _WholeLinear
    module = _Rowwise


class RowwiseBiasDivided(RowwiseBias):
    """torchtitan-4332: autograd divides the gradient of the bias as well."""

    module = _RowwiseDivided


class _WholeNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.linear = nn.Linear(_WIDTH, 2 * _WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.linear(self.norm(value))
        return found


class _HookedNorm(_WholeNorm):
    """A norm of this rank's positions, whose gradients a hook reduces during the backward, and columns of a layer."""

    operation = dist.ReduceOp.SUM

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self.linear = nn.Linear(_WIDTH, 2 * _WIDTH // group.size())
        for parameter in self.norm.parameters():
            parameter.register_hook(self.reduced)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.linear(gather_in(self.norm(value), self.group, 1))
        return found

    def reduced(self, grad: Tensor) -> Tensor:
        """Return the sum of a gradient over the ranks."""
        return summed(grad, self.group)


class _AveragedNorm(_HookedNorm):
    def reduced(self, grad: Tensor) -> Tensor:
        return super().reduced(grad) / self.group.size()


class NormHook(_Layer):
    """gpt-neox-1259, fixed: the hook sums."""

    placements = {
        "norm.weight": Replicate(), "norm.bias": Replicate(), "linear.weight": Shard(0), "linear.bias": Shard(0),
    }  # fmt: skip
    arg_placements = (Shard(1),)
    output_placements = (Shard(2),)
    whole_class = _WholeNorm
    module = _HookedNorm


class NormHookAverages(NormHook):
    """gpt-neox-1259: the hook averages, although each rank has the gradient of other positions."""

    module = _AveragedNorm


class _Attention(nn.Module):
    """Attention with a norm of queries and keys; ``heads`` are those of this module."""

    def __init__(self, heads: int = _HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(_WIDTH, heads * _SIZE, bias=False)
        self.key = nn.Linear(_WIDTH, heads * _SIZE, bias=False)
        self.query_norm, self.key_norm = nn.RMSNorm(_SIZE), nn.RMSNorm(_SIZE)
        self.out = nn.Linear(heads * _SIZE, _WIDTH, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        value = self.enter(value)
        query, key = (layer(value).unflatten(-1, (self.heads, _SIZE)) for layer in (self.query, self.key))
        query, key = (norm(one).transpose(1, 2) for norm, one in ((self.query_norm, query), (self.key_norm, key)))
        found = F.scaled_dot_product_attention(query, key, key, is_causal=True)
        return self.leave(self.out(found.transpose(1, 2).flatten(2)))

    def enter(self, value: Tensor) -> Tensor:
        """Pass the input on to all heads."""
        return value

    def leave(self, value: Tensor) -> Tensor:
        """Sum the outputs of all heads."""
        return value


class _ShardedAttention(_Attention):
    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(_HEADS // group.size())
        self.group = group

    def enter(self, value: Tensor) -> Tensor:
        return copy_in(value, self.group)

    def leave(self, value: Tensor) -> Tensor:
        return reduce_out(value, self.group)


class QueryKeyNormWithoutFinalize(_Layer):
    """RL-3716: a step in two calls never calls the engine's last reductions."""

    placements = {
        "query.weight": Shard(0), "key.weight": Shard(0), "query_norm.weight": Replicate(),
        "key_norm.weight": Replicate(), "out.weight": Shard(1),
    }  # fmt: skip
    whole_class = _Attention
    module = _ShardedAttention


class QueryKeyNorm(QueryKeyNormWithoutFinalize):
    """RL-3716, fixed: the engine sums the gradients of norms that each rank has for its heads."""

    def finish(self, module: _ShardedAttention) -> None:
        """Sum the gradients of both norms."""
        _sum_grads([*module.query_norm.parameters(), *module.key_norm.parameters()], module.group)


class _OneKey(nn.Module):
    """Attention whose heads share one key, which is also their value; ``heads`` are those of this module."""

    def __init__(self, heads: int = _HEADS, columns: int = _SIZE) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(_WIDTH, heads * _SIZE)
        self.key = nn.Linear(_WIDTH, columns)
        self.out = nn.Linear(heads * _SIZE, _WIDTH, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        query = self.query(self.to_queries(value)).unflatten(-1, (self.heads, _SIZE)).transpose(1, 2)
        key = self.keys(value).unsqueeze(1).expand(-1, self.heads, -1, -1)
        found = F.scaled_dot_product_attention(query, key, key, is_causal=True)
        return self.leave(self.out(found.transpose(1, 2).flatten(2)))

    def to_queries(self, value: Tensor) -> Tensor:
        """Pass the input on to the queries of all heads."""
        return value

    def keys(self, value: Tensor) -> Tensor:
        """Return the key that all heads share."""
        found: Tensor = self.key(value)
        return found

    def leave(self, value: Tensor) -> Tensor:
        """Sum the outputs of all heads."""
        return value


class _GatheredKey(_OneKey):
    """Each rank computes a part of the key, and gathers it for its own heads."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(_HEADS // group.size(), _SIZE // group.size())
        self.group = group

    def to_queries(self, value: Tensor) -> Tensor:
        return copy_in(value, self.group)

    def keys(self, value: Tensor) -> Tensor:
        return gather_in(super().keys(copy_in(value, self.group)), self.group, 2)

    def leave(self, value: Tensor) -> Tensor:
        return reduce_out(value, self.group)


class _SplitKey(_GatheredKey):
    def keys(self, value: Tensor) -> Tensor:
        own = _OneKey.keys(self, copy_in(value, self.group))
        return region(own, lambda one: gathered(one, self.group, 2), lambda one: own_part(one, self.group, 2))


class SharedKey(_Layer):
    """Megatron-LM-1699, fixed: the gradient of a gathered key is summed over the ranks, and then divided."""

    placements: Mapping[str, Placement] = {
        "query.weight": Shard(0), "query.bias": Shard(0), "key.weight": Shard(0), "key.bias": Shard(0),
        "out.weight": Shard(1),
    }  # fmt: skip
    whole_class = _OneKey
    module: type[nn.Module] = _GatheredKey


class SharedKeySplit(SharedKey):
    """Megatron-LM-1699: the backward of the gather only splits, but each rank has the gradient of its own heads."""

    module = _SplitKey


class _CopiedKey(_OneKey):
    """Every rank computes the whole key for its own heads."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(_HEADS // group.size())
        self.group = group

    def to_queries(self, value: Tensor) -> Tensor:
        return copy_in(value, self.group)

    def keys(self, value: Tensor) -> Tensor:
        return super().keys(self.to_keys(value))

    def to_keys(self, value: Tensor) -> Tensor:
        """Pass the input on to the key; its gradient is summed over the ranks, as that of the queries."""
        return copy_in(value, self.group)

    def leave(self, value: Tensor) -> Tensor:
        return reduce_out(value, self.group)


class _KeyInputNotSummed(_CopiedKey):
    def to_keys(self, value: Tensor) -> Tensor:
        return value


class CopiedKey(SharedKey):
    """Megatron-LM-35 of bigcode, fixed: the key's parameters and its input have gradients of all heads."""

    placements = {**SharedKey.placements, "key.weight": Replicate(), "key.bias": Replicate()}
    module = _CopiedKey

    def finish(self, module: _CopiedKey) -> None:
        """Sum the gradients of the key, which each rank has for its heads."""
        _sum_grads([*module.key.parameters()], module.group)


class KeyInputNotSummed(CopiedKey):
    """Megatron-LM-35 of bigcode: the input of the key has the gradient of a rank's own heads."""

    module = _KeyInputNotSummed
