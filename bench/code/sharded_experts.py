"""Experts divided over ranks: their gradients, and those of what comes before them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.nn import functional as F

from gradconform.reference.sharded.regions import copy_in, gather_in, gathered, reduce_out, scatter_out, summed

_WIDTH, _HIDDEN, _EXPERTS, _WORDS, _TOKENS, _CHOSEN = 5, 6, 4, 7, 12, 2


def _sum_grads(parameters: Iterable[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Sum gradients over the ranks of a group, where there are any."""
    for parameter in parameters:
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=group)


class _Experts(nn.Module):
    """A router and experts, of which this module has ``count`` from ``first`` on."""

    def __init__(self, first: int = 0, count: int = _EXPERTS) -> None:
        super().__init__()
        self.first = first
        self.router = nn.Linear(_WIDTH, _EXPERTS, bias=False)
        self.experts = nn.Parameter(torch.randn(count, _WIDTH, _WIDTH) / _WIDTH**0.5)

    def forward(self, value: Tensor) -> Tensor:
        """Return the outputs of (tokens, width)."""
        return self.combined(value, self.scores(value))

    def scores(self, value: Tensor) -> Tensor:
        """Return the weight of each expert for each token, zero for those that it does not choose."""
        shares = self.router(value).softmax(-1)
        found: Tensor = shares * torch.zeros_like(shares).scatter(-1, shares.topk(_CHOSEN).indices, 1.0)
        return found

    def combined(self, value: Tensor, scores: Tensor) -> Tensor:
        """Return the sum of the outputs of this module's experts."""
        own = scores[:, self.first : self.first + len(self.experts)]
        return torch.einsum("te,tw,ewv->tv", own, value, self.experts)


class RankExperts(_Experts):
    """One rank's experts."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group("ep")
        count = _EXPERTS // self.group.size()
        super().__init__(self.group.rank() * count, count)


class _GatheredTokens(RankExperts):
    """Each rank has some tokens. It gathers those of all ranks for its experts, and gets the sums for its own back."""

    def forward(self, value: Tensor) -> Tensor:
        scores = self.to_experts(self.scores(value))
        found = self.combined(gather_in(value, self.group, 0), scores)
        return scatter_out(found, self.group, 0)

    def to_experts(self, scores: Tensor) -> Tensor:
        """Gather the weights of all tokens."""
        return gather_in(scores, self.group, 0)


class _WeightsWithoutGradient(_GatheredTokens):
    def to_experts(self, scores: Tensor) -> Tensor:
        return gathered(scores.detach(), self.group, 0)


class _Stage:
    """A sharded stage of experts."""

    mesh = {"ep": (2,)}
    placements: Any = {"router.weight": Replicate(), "experts": Shard(0)}
    module: type[Any] = _GatheredTokens

    def whole(self) -> nn.Module:
        """Return all experts on one process."""
        return _Experts()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's experts."""
        found: nn.Module = self.module(mesh)
        return found

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return tokens."""
        return (torch.randn(_TOKENS, _WIDTH, generator=generator),)


class GatheredWeights(_Stage):
    """Automodel-2995, fixed: the gather of the weights has a backward."""

    arg_placements = output_placements = (Shard(0),)

    def finish(self, module: RankExperts) -> None:
        """Sum the gradient of the router, which each rank has for its tokens."""
        _sum_grads(module.router.parameters(), module.group)


class WeightsWithoutGradient(GatheredWeights):
    """Automodel-2995: the weights of experts are gathered without a gradient."""

    module = _WeightsWithoutGradient


class _MaskedScores(RankExperts):
    """Every rank has all tokens. It masks the weights of other ranks' experts, and the outputs are summed."""

    def forward(self, value: Tensor) -> Tensor:
        scores = self.masked(self.scores(value))
        return reduce_out(self.combined(copy_in(value, self.group), scores), self.group)

    def masked(self, scores: Tensor) -> Tensor:
        """Mask other ranks' experts; the gradients of all ranks are summed before the mask."""
        scores = copy_in(scores, self.group)
        places = torch.arange(_EXPERTS, device=scores.device)
        return scores.masked_fill((places - self.first).div(len(self.experts), rounding_mode="floor") != 0, 0.0)


class _MaskedNotSummed(_MaskedScores):
    def masked(self, scores: Tensor) -> Tensor:
        places = torch.arange(_EXPERTS, device=scores.device)
        return scores.masked_fill((places - self.first).div(len(self.experts), rounding_mode="floor") != 0, 0.0)


class MaskedScores(_Stage):
    """transformers-48205, fixed: the gradient of the scores is summed over the ranks."""

    module = _MaskedScores


class MaskedScoresNotSummed(MaskedScores):
    """transformers-48205: each rank's router has the gradient of that rank's experts alone."""

    module = _MaskedNotSummed


class _DTensorRouter(RankExperts):
    """The router is a DTensor that all ranks have; its scores leave DTensors before the experts."""

    grad_placements: Any = [Partial()]

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(mesh)
        weight = DTensor.from_local(self.router.weight.detach(), mesh["ep"], [Replicate()])
        self.router.weight = nn.Parameter(weight)

    def forward(self, value: Tensor) -> Tensor:
        weight: Any = self.router.weight
        logits: Any = F.linear(DTensor.from_local(value, weight.device_mesh, [Replicate()]), weight)
        shares = logits.softmax(-1).to_local(grad_placements=self.grad_placements)
        chosen = torch.zeros_like(shares).scatter(-1, shares.topk(_CHOSEN).indices, 1.0)
        return reduce_out(self.combined(copy_in(value, self.group), shares * chosen), self.group)


class _DTensorRouterReplicated(_DTensorRouter):
    grad_placements = None


class DTensorRouter(_Stage):
    """torchtitan-2387, fixed: the gradient that returns to the router's DTensor is partial."""

    module = _DTensorRouter


class DTensorRouterReplicated(DTensorRouter):
    """torchtitan-2387: the gradient that returns is taken for the whole one."""

    module = _DTensorRouterReplicated


class _MeanLoss(_Experts):
    """The loss of a stage is a mean over its tokens, which are words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(self.words(tokens)).square().mean()


class _RankMeanLoss(_GatheredTokens):
    """The loss is a mean over this rank's tokens; ``dp`` are the ranks with other tokens and the same experts."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__(mesh)
        self.words = nn.Embedding(_WORDS, _WIDTH)
        self.dp = mesh.get_group("dp") if "dp" in (mesh.mesh_dim_names or ()) else None

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(self.words(tokens)).square().mean()

    def average(self, *, divisor: int) -> None:
        """Average gradients as an engine does: dense ones over all ranks, those of experts over ``dp`` alone.

        Those of experts are sums over ``ep`` already; ``divisor`` divides them.
        """
        dense = [*self.router.parameters(), *self.words.parameters()]
        replicas = 1 if self.dp is None else self.dp.size()
        _sum_grads(dense, self.group)
        if self.dp is not None:
            _sum_grads([*dense, self.experts], self.dp)
        for parameter in dense:
            if parameter.grad is not None:
                parameter.grad /= self.group.size() * replicas
        if self.experts.grad is not None:
            self.experts.grad /= divisor * replicas


class ExpertsOfMeanLoss(_Stage):
    """pytorch-160285, fixed: the gradients of experts are divided by the ranks whose tokens they have."""

    placements = {"words.weight": Replicate(), **_Stage.placements}
    arg_placements: Any = (Shard(0),)
    output_placements: Any = (Partial("avg"),)
    module = _RankMeanLoss

    def whole(self) -> nn.Module:
        """Return all experts and the mean loss on one process."""
        return _MeanLoss()

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return words."""
        return (torch.randint(_WORDS, (_TOKENS,), generator=generator),)

    def finish(self, module: _RankMeanLoss) -> None:
        """Average gradients."""
        module.average(divisor=module.group.size())


class ExpertsDoubled(ExpertsOfMeanLoss):
    """pytorch-160285: the gradients of experts are sums over the ranks, and stay sums."""

    def finish(self, module: _RankMeanLoss) -> None:
        """Average gradients but for those of experts."""
        module.average(divisor=1)


class ExpertsOfReplicas(ExpertsOfMeanLoss):
    """Megatron-LM-5956, fixed: with replicas of the experts, their gradients are divided by all ranks."""

    mesh = {"dp": (2,), "ep": (2,)}
    placements = {**ExpertsOfMeanLoss.placements, "experts": {"ep": Shard(0)}}
    arg_placements = ({"dp": Shard(0), "ep": Shard(0)},)
    output_placements = ({"dp": Partial("avg"), "ep": Partial("avg")},)


class ExpertsDividedByReplicas(ExpertsOfReplicas):
    """Megatron-LM-5956: their gradients are divided by the replicas of an expert alone."""

    def finish(self, module: _RankMeanLoss) -> None:
        """Average gradients, those of experts over their replicas."""
        module.average(divisor=1)


class _GatedExpert(nn.Module):
    """A shared expert whose output is weighed by a gate."""

    def __init__(self, hidden: int = _HIDDEN) -> None:
        super().__init__()
        self.up = nn.Linear(_WIDTH, hidden, bias=False)
        self.down = nn.Linear(hidden, _WIDTH, bias=False)
        self.gate = nn.Linear(_WIDTH, 1, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.leave(self.down(F.silu(self.up(self.enter(value))))) * self.gate(value).sigmoid()
        return found

    def enter(self, value: Tensor) -> Tensor:
        """Pass the tokens on to all columns."""
        return value

    def leave(self, value: Tensor) -> Tensor:
        """Sum the products of all columns."""
        return value


class _SequenceExpert(_GatedExpert):
    """One rank's columns; the gate has this rank's tokens alone."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.group = mesh.get_group("tp")
        super().__init__(_HIDDEN // self.group.size())

    def enter(self, value: Tensor) -> Tensor:
        return gather_in(value, self.group, 0)

    def leave(self, value: Tensor) -> Tensor:
        return scatter_out(value, self.group, 0)


class GateNotSummed(_Stage):
    """Pai-Megatron-Patch-397: the engine does not know that the gate has a part of the sequence."""

    mesh = {"tp": (2,)}
    placements = {"up.weight": Shard(0), "down.weight": Shard(1), "gate.weight": Replicate()}
    arg_placements = output_placements = (Shard(0),)
    module = _SequenceExpert

    def whole(self) -> nn.Module:
        """Return the expert and its gate on one process."""
        return _GatedExpert()


class GateSummed(GateNotSummed):
    """Pai-Megatron-Patch-397, fixed: the gate is marked, and the engine sums its gradient."""

    def finish(self, module: _SequenceExpert) -> None:
        """Sum the gradient of the gate."""
        _sum_grads(module.gate.parameters(), module.group)


class _Attached(torch.autograd.Function):
    """Adds an auxiliary loss to the backward of a tensor that passes unchanged."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(loss)
        ctx.scale = scale
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (loss,) = ctx.saved_tensors
        return grads[0], torch.full_like(loss, ctx.scale), None


class _Balanced(_Experts):
    """Experts whose router has an auxiliary loss, which the backward adds."""

    def forward(self, value: Tensor) -> Tensor:
        shares = self.router(value).softmax(-1)
        counts = F.one_hot(shares.topk(_CHOSEN).indices, _EXPERTS).sum((0, 1))
        loss = _EXPERTS * (self.counted(counts) * shares.sum(0)).sum() / _TOKENS**2
        attached: Tensor = _Attached.apply(self.scores(value), loss, self.scale(len(value)))  # type: ignore[no-untyped-call] # so is torch's
        return self.mixed(value, attached)

    def counted(self, counts: Tensor) -> Tensor:
        """Return the number of tokens of each expert."""
        return counts

    def scale(self, tokens: int) -> float:
        """Return the factor of the auxiliary loss: a step later divides by the number of all tokens."""
        return tokens / _TOKENS

    def mixed(self, value: Tensor, scores: Tensor) -> Tensor:
        """Return the outputs."""
        return self.combined(value, scores)


class _RankBalanced(_Balanced, RankExperts):
    """One rank's tokens and experts."""

    def counted(self, counts: Tensor) -> Tensor:
        return summed(counts, self.group)

    def scale(self, tokens: int) -> float:
        return super().scale(tokens) * self.group.size()

    def mixed(self, value: Tensor, scores: Tensor) -> Tensor:
        found = self.combined(gather_in(value, self.group, 0), gather_in(scores, self.group, 0))
        return scatter_out(found, self.group, 0)


class _ScaledByOwnTokens(_RankBalanced):
    def scale(self, tokens: int) -> float:
        return _Balanced.scale(self, tokens)


class BalanceScaled(GatheredWeights):
    """Megatron-LM-5047, fixed: the auxiliary loss is multiplied by the tokens of all ranks of the sequence."""

    module = _RankBalanced

    def whole(self) -> nn.Module:
        """Return all experts and the auxiliary loss on one process."""
        return _Balanced()


class BalanceScaledByOwnTokens(BalanceScaled):
    """Megatron-LM-5047: it is multiplied by the tokens of this rank."""

    module = _ScaledByOwnTokens
