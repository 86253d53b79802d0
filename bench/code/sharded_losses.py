"""Cross entropy over a vocabulary that is divided over ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from gradconform.reference.sharded.regions import copy_in, gather_in, reduce_out, summed

_WIDTH, _WORDS, _TOKENS, _SMOOTHING = 6, 8, 10, 0.1


class _Scores(nn.Module):
    """A norm and a head over the words of this module."""

    def __init__(self, words: int = _WORDS) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(_WIDTH)
        self.head = nn.Linear(_WIDTH, words, bias=False)


class _WholeLoss(_Scores):
    smoothing = 0.0

    def forward(self, value: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.norm(value))
        return F.cross_entropy(scores, labels, reduction="none", label_smoothing=self.smoothing)


class _WholeSmoothed(_WholeLoss):
    smoothing = _SMOOTHING


class _RankScores(_Scores):
    """One rank's words."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(_WORDS // group.size())
        self.group = group

    def forward(self, value: Tensor, labels: Tensor) -> Tensor:
        return self.losses(self.head(copy_in(self.norm(value), self.group)), labels)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each token from the scores of this rank's words."""
        return self.total(scores) - self.picked(scores, labels)

    def total(self, scores: Tensor) -> Tensor:
        """Return the logarithm of the sum of exponentials over the words of all ranks."""
        return reduce_out(scores.exp().sum(-1), self.group).log()

    def picked(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the score of each label, which one rank has."""
        return reduce_out(self.own(scores, labels), self.group)

    def own(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the score of each label that is one of this rank's words, and zero for the others."""
        places = labels - self.group.rank() * scores.shape[-1]
        mine = (places >= 0) & (places < scores.shape[-1])
        found = scores.gather(-1, torch.where(mine, places, 0).unsqueeze(-1)).squeeze(-1)
        return torch.where(mine, found, torch.zeros_like(found))


class _Smoothed(torch.autograd.Function):
    """Cross entropy with label smoothing, whose backward is computed in the forward, as Megatron-LM has it."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor, group: dist.ProcessGroup, local: bool) -> Tensor:  # noqa: FBT001 (called by torch)
        words = scores.shape[-1]
        total = summed(scores.exp().sum(-1, keepdim=True), group)
        shares, logs = scores.exp() / total, scores - total.log()
        places = labels - group.rank() * words
        hot = torch.zeros_like(scores)
        mine = (places >= 0) & (places < words)
        hot[mine, places[mine]] = 1.0
        right = summed((logs * hot).sum(-1), group)
        count = words if local else words * group.size()
        mean = logs.mean(-1) if local else summed(logs.sum(-1), group) / count
        ctx.save_for_backward(shares - (1.0 - _SMOOTHING) * hot - _SMOOTHING / count)
        return -(1.0 - _SMOOTHING) * right - _SMOOTHING * mean

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (of_scores,) = ctx.saved_tensors
        return of_scores * grads[0].unsqueeze(-1), None, None, None


class _SmoothedScores(_RankScores):
    """``local`` says that a rank's words are taken for the whole vocabulary."""

    local = False

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = _Smoothed.apply(scores, labels, self.group, self.local)  # type: ignore[no-untyped-call] # so is torch's
        return found


class _SmoothedLocally(_SmoothedScores):
    local = True


class _GatheredScores(_RankScores):
    """The scores of all words are gathered, so that every rank has the whole vocabulary."""

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(gather_whole(scores, self.group), labels, reduction="none")


class _GatheredTakenForPart(_RankScores):
    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        return super().losses(gather_in(scores, self.group, 1), labels)


class _Gathered(torch.autograd.Function):
    """A gather of tensors that every rank then uses alike, so the gradient is only divided."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(value) for _ in range(group.size())]
        dist.all_gather(parts, value.contiguous(), group=group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].chunk(ctx.group.size(), -1)[ctx.group.rank()].contiguous(), None


def gather_whole(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the parts of all ranks along the last dimension."""
    found: Tensor = _Gathered.apply(value, group)  # type: ignore[no-untyped-call] # so is torch's
    return found


class _PlainAllReduce(_RankScores):
    """The log-probability of each label is summed by a collective that has no backward."""

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        own = self.own(scores - self.total(scores).unsqueeze(-1), labels)
        with torch.no_grad():
            rest = summed(own, self.group) - own
        return -(own + rest)


class VocabularyLoss:
    """ms-swift-9947, fixed: a cross entropy with a backward on every rank."""

    mesh = {"tp": (2,)}
    placements = {"norm.weight": Replicate(), "norm.bias": Replicate(), "head.weight": Shard(0)}
    whole_class: type[nn.Module] = _WholeLoss
    module: type[_RankScores] = _RankScores

    def whole(self) -> nn.Module:
        """Return the head and the loss on one process."""
        return self.whole_class()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's words."""
        return self.module(mesh.get_group("tp"))

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return hidden states and labels."""
        return (
            torch.randn(_TOKENS, _WIDTH, generator=generator),
            torch.randint(_WORDS, (_TOKENS,), generator=generator),
        )


class LabelReducedWithoutBackward(VocabularyLoss):
    """ms-swift-9947: words get no gradient from tokens whose label another rank has."""

    module = _PlainAllReduce


class SmoothedLoss(VocabularyLoss):
    """Megatron-LM-737, fixed: label smoothing counts and averages the words of all ranks."""

    whole_class = _WholeSmoothed
    module = _SmoothedScores


class SmoothedLossOfOwnWords(SmoothedLoss):
    """Megatron-LM-737: it counts and averages a rank's own words."""

    module = _SmoothedLocally


class GatheredLoss(VocabularyLoss):
    """Megatron-LM-7452, finding 2, fixed: gathered scores get a loss over the whole vocabulary."""

    module = _GatheredScores


class GatheredLossOfPart(VocabularyLoss):
    """Megatron-LM-7452, finding 2: gathered scores get the loss of divided ones."""

    module = _GatheredTakenForPart
