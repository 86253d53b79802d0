"""A language model's ends, split over the vocabulary: embedding, norm, head and cross entropy."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from .column_row import squares
from .regions import copy_in, reduce_out, summed

WIDTH, WORDS, ROWS, POSITIONS, IGNORED = 8, 16, 2, 6, -100


class WholeEnds(nn.Module):
    """Embedding, norm, head and loss on one process."""

    def __init__(self, *, tied: bool, reduction: str, smoothing: float) -> None:
        super().__init__()
        self.reduction, self.smoothing = reduction, smoothing
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss."""
        scores = self.head(self.norm(self.embedding(tokens)))
        return F.cross_entropy(
            scores.flatten(0, 1), labels.flatten(), reduction=self.reduction, label_smoothing=self.smoothing
        )


class ShardedEnds(nn.Module):
    """One rank's words. Each method is one step, so that a fault replaces one of them."""

    def __init__(self, mesh: DeviceMesh, *, tied: bool, reduction: str, smoothing: float) -> None:
        super().__init__()
        self.group = mesh.get_group("tp")
        self.reduction, self.smoothing = reduction, smoothing
        self.words = WORDS // self.group.size()
        self.first = self.words * self.group.rank()
        self.embedding = nn.Embedding(self.words, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, self.words, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, which is the same on all ranks."""
        scores = self.head(self.to_head(self.norm(self.embedded(tokens)))).flatten(0, 1)
        labels = labels.flatten()
        losses = self.losses(scores, labels)
        return self.reduced(torch.where(labels == IGNORED, torch.zeros_like(losses), losses), labels)

    def to_head(self, value: Tensor) -> Tensor:
        """Pass the hidden state on to the words of all ranks."""
        return copy_in(value, self.group)

    def own(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return the places of words in this rank's part, and which of them it has."""
        places = words - self.first
        mine = (places >= 0) & (places < self.words)
        return torch.where(mine, places, 0), mine

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings, which one rank has for each token."""
        places, mine = self.own(tokens)
        return reduce_out(self.embedding(places) * mine.unsqueeze(-1), self.group)

    def losses(self, scores: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of each token."""
        highest = scores.detach().max(-1).values
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=self.group)
        shifted = scores - highest.unsqueeze(-1)
        total = self.over_words(shifted.exp().sum(-1)).log()
        places, mine = self.own(labels)
        right = reduce_out(shifted.gather(-1, places.unsqueeze(-1)).squeeze(-1) * mine, self.group)
        if not self.smoothing:
            return total - right
        return total - (1.0 - self.smoothing) * right - self.smoothing * self.mean_score(shifted)

    def over_words(self, value: Tensor) -> Tensor:
        """Return a sum over this rank's words as the sum over all."""
        return reduce_out(value, self.group)

    def mean_score(self, shifted: Tensor) -> Tensor:
        """Return the mean score over all words."""
        return reduce_out(shifted.sum(-1), self.group) / WORDS

    def reduced(self, losses: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of all tokens."""
        return losses.sum() / (labels != IGNORED).sum() if self.reduction == "mean" else losses.sum()


class VocabularyLoss:
    """The sharded stage."""

    name = "vocabulary-loss"
    mesh = {"tp": (2, 4)}
    options = {"tied": (False, True), "reduction": ("mean", "sum"), "smoothing": (0.0, 0.1)}
    placements = {
        "embedding.weight": Shard(0), "norm.weight": Replicate(), "norm.bias": Replicate(), "head.weight": Shard(0),
    }  # fmt: skip
    module: type[ShardedEnds] = ShardedEnds

    def __init__(self, *, tied: bool = False, reduction: str = "mean", smoothing: float = 0.0) -> None:
        self.given: dict[str, Any] = {"tied": tied, "reduction": reduction, "smoothing": smoothing}

    def whole(self) -> nn.Module:
        return WholeEnds(**self.given)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        return self.module(mesh, **self.given)

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens, labels = torch.randint(WORDS, (2, ROWS, POSITIONS), generator=generator)
        labels[0, :2] = IGNORED
        return tokens, labels

    def grad_norm(self, module: ShardedEnds) -> float:
        words = list(dict.fromkeys([module.embedding.weight, module.head.weight]))
        return float((summed(squares(words), module.group) + squares(list(module.norm.parameters()))).sqrt())
