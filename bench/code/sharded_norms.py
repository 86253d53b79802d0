"""Clipping norms over tensor ranks and over expert ranks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from gradconform.reference.sharded.column_row import squares
from gradconform.reference.sharded.regions import copy_in, reduce_out, summed

from .sharded_experts import GatheredWeights, RankExperts

_WIDTH, _HEADS, _SIZE, _ROWS, _POSITIONS = 6, 4, 3, 2, 4


class _SinkAttention(nn.Module):
    """Attention whose softmax has one more, learned score per head; keys come from a small projection."""

    def __init__(self, heads: int = _HEADS) -> None:
        super().__init__()
        self.heads = heads
        self.latent = nn.Linear(_WIDTH, _SIZE, bias=False)
        self.query = nn.Linear(_WIDTH, heads * _SIZE, bias=False)
        self.key = nn.Linear(_SIZE, heads * _SIZE, bias=False)
        self.sink = nn.Parameter(torch.randn(heads))
        self.out = nn.Linear(heads * _SIZE, _WIDTH, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        query = self.query(self.to_heads(value)).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        key = self.key(self.to_heads(self.latent(value))).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        scores = query @ key.transpose(-1, -2)
        sink = self.sink.view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
        found = torch.cat([scores, sink], -1).softmax(-1)[..., :-1] @ key
        return self.leave(self.out(found.transpose(1, 2).flatten(2)))

    def to_heads(self, value: Tensor) -> Tensor:
        """Pass a tensor on to all heads."""
        return value

    def leave(self, value: Tensor) -> Tensor:
        """Sum the outputs of all heads."""
        return value


class _RankSinkAttention(_SinkAttention):
    """One rank's heads."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(_HEADS // group.size())
        self.group = group

    def to_heads(self, value: Tensor) -> Tensor:
        return copy_in(value, self.group)

    def leave(self, value: Tensor) -> Tensor:
        return reduce_out(value, self.group)


class MarkedNorm:
    """Megatron-LM-7452, finding 8, and TransformerEngine-715, fixed: each divided parameter is marked, and no other."""

    mesh = {"tp": (2,)}
    placements = {
        "latent.weight": Replicate(), "query.weight": Shard(0), "key.weight": Shard(0), "sink": Shard(0),
        "out.weight": Shard(1),
    }  # fmt: skip
    marked: tuple[str, ...] = ("query.weight", "key.weight", "sink", "out.weight")

    def whole(self) -> nn.Module:
        """Return all heads on one process."""
        return _SinkAttention()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's heads."""
        return _RankSinkAttention(mesh.get_group("tp"))

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return sequences."""
        return (torch.randn(_ROWS, _POSITIONS, _WIDTH, generator=generator),)

    def grad_norm(self, module: _RankSinkAttention) -> float:
        """Return the norm of marked parameters on all ranks, and of the others on the first one."""
        return float(summed(squares(self.counted(module)), module.group).sqrt())

    def counted(self, module: _RankSinkAttention) -> Iterator[nn.Parameter]:
        """Yield the parameters whose gradients count on this rank."""
        for name, parameter in module.named_parameters():
            if name in self.marked or module.group.rank() == 0:
                yield parameter


class SinkNotMarked(MarkedNorm):
    """Megatron-LM-7452, finding 8: the sinks are divided but not marked."""

    marked = ("query.weight", "key.weight", "out.weight")


class EveryWeightMarked(MarkedNorm):
    """TransformerEngine-715: a projection that every rank has whole is marked like the others."""

    marked = (*MarkedNorm.marked, "latent.weight")


class ClippedTogether(GatheredWeights):
    """Automodel-3816, DeepSpeed-8469 and Megatron-LM-5916, fixed: the experts of all ranks count."""

    def grad_norm(self, module: RankExperts) -> float:
        """Return the norm of all gradients."""
        return float((summed(squares([module.experts]), module.group) + squares([module.router.weight])).sqrt())


class ClippedByGroup(ClippedTogether):
    """Automodel-3816: each rank computes the norm of the parameters that it has."""

    def grad_norm(self, module: RankExperts) -> float:
        """Return the norm of this rank's gradients."""
        return float(squares(module.parameters()).sqrt())


class NormsAveraged(ClippedTogether):
    """DeepSpeed-8469: the norms of ranks with different experts are averaged."""

    def grad_norm(self, module: RankExperts) -> float:
        """Return the mean of the ranks' norms."""
        return float(summed(squares(module.parameters()).sqrt(), module.group) / module.group.size())


class ExpertsTakenForCopies(ClippedTogether):
    """Megatron-LM-5916: experts that no tensor rank divides count as copies, on all of these ranks but the first."""

    def grad_norm(self, module: RankExperts) -> float:
        """Return the norm of the first rank's gradients, on every rank."""
        own = squares(module.parameters()) if module.group.rank() == 0 else torch.zeros((), dtype=torch.float64)
        return float(summed(own, module.group).sqrt())
