"""Sequences divided over ranks: attention over all positions, and losses whose ranks have different tokens."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn import functional as F

from gradconform.reference.sharded.context import passed_on
from gradconform.reference.sharded.regions import gather_in, summed

_WIDTH, _WORDS, _CLASSES, _ROWS, _POSITIONS, _IGNORED = 6, 7, 5, 2, 8, -100


class _Ring(torch.autograd.Function):
    """Attention over the keys and values of all ranks, which pass by one after the other."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, pair: Tensor, group: dist.ProcessGroup, stale: bool) -> Tensor:  # noqa: FBT001 (called by torch)
        total = found = None
        passing = pair
        for step in range(group.size()):
            passing = passed_on(passing, group, 1) if step else passing
            scores = query @ passing[0].transpose(-1, -2)
            own = scores.logsumexp(-1, keepdim=True)
            more = own if total is None else torch.logaddexp(total, own)
            part = (scores - more).exp() @ passing[1]
            found = part if found is None or total is None else found * (total - more).exp() + part
            total = more
        ctx.save_for_backward(query, pair, found, total)
        ctx.group, ctx.stale = group, stale
        return found  # type: ignore[return-value] # a group has a rank

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        query, pair, found, total = ctx.saved_tensors
        of_query, of_pair, passing = torch.zeros_like(query), torch.zeros_like(pair), pair
        for step in range(ctx.group.size()):
            passing = passed_on(passing, ctx.group, 1) if step else passing
            more, back = _of_block(query, pair if ctx.stale else passing, found, total, grads[0])
            of_query += more
            of_pair = passed_on(of_pair + back, ctx.group, 1)
        return of_query, of_pair, None, None


def _of_block(query: Tensor, pair: Tensor, found: Tensor, total: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients of queries, and of one block of keys and values."""
    shares = (query @ pair[0].transpose(-1, -2) - total).exp()
    of_scores = shares * (grad @ pair[1].transpose(-1, -2) - (grad * found).sum(-1, keepdim=True))
    back = torch.stack([of_scores.transpose(-1, -2) @ query, shares.transpose(-1, -2) @ grad])
    return of_scores @ pair[0], back


class _Attention(nn.Module):
    """Attention without a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, value: Tensor) -> Tensor:
        return self.attended(*self.qkv(value).chunk(3, -1))

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return attention over all positions."""
        return (query @ key.transpose(-1, -2)).softmax(-1) @ value


class _RingAttention(_Attention):
    """One rank's positions; ``stale`` says that the backward reads the keys and values that the forward stored."""

    stale = False

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.group = mesh.get_group("cp")

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        found: Tensor = _Ring.apply(query, torch.stack([key, value]), self.group, self.stale)  # type: ignore[no-untyped-call] # so is torch's
        return found


class _StaleRing(_RingAttention):
    stale = True


class RingBackward:
    """diffusers-14265, fixed: the backward computes with the keys and values that pass by."""

    mesh = {"cp": (2,)}
    placements = {"qkv.weight": Replicate(), "qkv.bias": Replicate()}
    arg_placements = output_placements = (Shard(1),)
    module: type[_RingAttention] = _RingAttention

    def whole(self) -> nn.Module:
        """Return attention on one process."""
        return _Attention()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's attention."""
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return sequences."""
        return (torch.randn(_ROWS, _POSITIONS, _WIDTH, generator=generator),)

    def finish(self, module: _RingAttention) -> None:
        """Sum the gradients of all positions."""
        for parameter in module.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=module.group)


class RingBackwardStale(RingBackward):
    """diffusers-14265: it passes them round, but computes with those that the forward stored: its own."""

    module = _StaleRing


class _Replica(_Attention):
    """Some rows, and of these some positions: the keys and values of all positions are gathered."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.dp, self.sp = mesh.get_group("dp"), mesh.get_group("sp")

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        key, value = (gather_in(one, self.sp, 1) for one in (key, value))
        return super().attended(query, key, value)


class ReplicasOfSequences:
    """VeOmni-1059, fixed: gradients are reduced over replicas and over the ranks of a sequence."""

    mesh = {"dp": (1, 2), "sp": (2,)}
    placements = {"qkv.weight": Replicate(), "qkv.bias": Replicate()}
    arg_placements = output_placements = ({"dp": Shard(0), "sp": Shard(1)},)

    def whole(self) -> nn.Module:
        """Return attention on one process."""
        return _Attention()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's attention."""
        return _Replica(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return sequences."""
        return (torch.randn(_ROWS, _POSITIONS, _WIDTH, generator=generator),)

    def groups(self, module: _Replica) -> list[dist.ProcessGroup]:
        """Return the groups over which gradients are reduced."""
        return [module.dp, module.sp]

    def finish(self, module: _Replica) -> None:
        """Reduce all gradients."""
        for group in self.groups(module):
            for parameter in module.parameters():
                if parameter.grad is not None:
                    dist.all_reduce(parameter.grad, group=group)


class ReplicasAlone(ReplicasOfSequences):
    """VeOmni-1059: they are reduced over replicas alone."""

    def groups(self, module: _Replica) -> list[dist.ProcessGroup]:
        """Return the group of the replicas, which may be one rank."""
        return [module.dp]


class _TokenLoss(nn.Module):
    """A classifier of words, and the mean of the losses of all valid ones."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.head = nn.Linear(_WIDTH, _CLASSES)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.words(tokens))
        losses = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="sum")
        return self.averaged(losses, (labels != _IGNORED).sum())

    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        """Return the mean from the sum of losses and the number of valid tokens."""
        return losses / valid


class _RankTokenLoss(_TokenLoss):
    """One rank's positions: the engine averages the losses and gradients of all ranks."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.groups = [mesh.get_group(name) for name in mesh.mesh_dim_names or ()]
        self.sequence = self.groups[-1]

    @property
    def ranks(self) -> int:
        """The number of all ranks."""
        found = 1
        for group in self.groups:
            found *= group.size()
        return found

    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        """Divide by the valid tokens of all ranks, and multiply by the ranks over which the engine averages."""
        for group in self.groups:
            valid = summed(valid, group)
        return losses * self.ranks / valid


class _ByOwnCount(_RankTokenLoss):
    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        return losses / valid.clamp(min=1)


class _TimesReplicas(_RankTokenLoss):
    def averaged(self, losses: Tensor, valid: Tensor) -> Tensor:
        return super().averaged(losses, valid) / self.sequence.size()


class SequenceLoss:
    """The fixed version of Megatron-LM-7452, VeOmni-338 and DeepSpeed-5248: a mean over the tokens of all ranks."""

    mesh = {"cp": (2,)}
    placements = dict.fromkeys(("words.weight", "head.weight", "head.bias"), Replicate())
    arg_placements: Any = (Shard(1), Shard(1))
    output_placements: Any = (Partial("avg"),)
    module: type[_RankTokenLoss] = _RankTokenLoss

    def whole(self) -> nn.Module:
        """Return the classifier and the mean loss on one process."""
        return _TokenLoss()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's classifier and loss."""
        return self.module(mesh)

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return words and labels, of which few in the first half are valid."""
        tokens = torch.randint(_WORDS, (_ROWS, _POSITIONS), generator=generator)
        labels = torch.randint(_CLASSES, (_ROWS, _POSITIONS), generator=generator)
        labels[:, : _POSITIONS // 2 - 1] = _IGNORED
        return tokens, labels

    def finish(self, module: _RankTokenLoss) -> None:
        """Average gradients over all ranks."""
        for parameter in module.parameters():
            if parameter.grad is not None:
                for group in module.groups:
                    dist.all_reduce(parameter.grad, group=group)
                parameter.grad /= self.divisor(module)

    def divisor(self, module: _RankTokenLoss) -> int:
        """Return the number of ranks by which sums of gradients are divided."""
        return module.ranks


class SequenceLossByOwnCount(SequenceLoss):
    """Megatron-LM-7452, finding 9: each rank divides by its own valid tokens."""

    module = _ByOwnCount


class SequenceOfReplicasLoss(SequenceLoss):
    """VeOmni-338, fixed: the loss is multiplied by all ranks over which the engine averages."""

    mesh = {"dp": (2,), "sp": (2,)}
    arg_placements = ({"dp": Shard(0), "sp": Shard(1)}, {"dp": Shard(0), "sp": Shard(1)})
    output_placements = ({"dp": Partial("avg"), "sp": Partial("avg")},)


class LossTimesReplicas(SequenceOfReplicasLoss):
    """VeOmni-338: it is multiplied by the replicas alone."""

    module = _TimesReplicas


class GradientsDividedByReplicas(SequenceOfReplicasLoss):
    """DeepSpeed-5248: gradients are summed over all ranks, and divided by the replicas alone."""

    def divisor(self, module: _RankTokenLoss) -> int:
        """Return the number of replicas."""
        return module.groups[0].size()
