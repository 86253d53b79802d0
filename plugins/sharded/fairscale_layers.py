"""fairscale's tensor-parallel layers as a sharded stage: embedding, linear layers, a head and its cross entropy."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from gradconform.adapter import needed

with needed("fairscale", "pip install 'gradconform[fairscale]'"):
    from fairscale.nn.model_parallel import initialize, layers
    from fairscale.nn.model_parallel.cross_entropy import vocab_parallel_cross_entropy

WIDTH, HIDDEN, WORDS, ROWS, POSITIONS = 8, 16, 16, 2, 6


class _WholeModel(nn.Module):
    """An embedding, two linear layers, a head, and the loss of each token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        value = self.words(tokens)
        scores = self.head(value + self.down(F.gelu(self.up(value))))
        losses: Tensor = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
        return losses.view_as(labels)


class _ShardedModel(nn.Module):
    """The same of fairscale's layers."""

    def __init__(self, *, columns: bool, gathered: bool) -> None:
        super().__init__()
        self.words = (layers.ParallelEmbedding if columns else layers.VocabParallelEmbedding)(WORDS, WIDTH)
        self.up = layers.ColumnParallelLinear(WIDTH, HIDDEN, gather_output=gathered)
        self.down = layers.RowParallelLinear(HIDDEN, WIDTH, input_is_parallel=not gathered)
        self.head = layers.ColumnParallelLinear(WIDTH, WORDS, gather_output=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        value = self.words(tokens)
        scores = self.head(value + self.down(F.gelu(self.up(value))))
        losses: Tensor = vocab_parallel_cross_entropy(scores, labels)
        return losses


class Layers:
    """fairscale's layers; ``columns`` divides the embedding by width, and ``gathered`` gathers between both layers."""

    name = "fairscale-layers"
    mesh = {"tp": (2, 4)}
    options = {"columns": (False, True), "gathered": (False, True)}

    def __init__(self, *, columns: bool = False, gathered: bool = False) -> None:
        """Choose how the embedding is divided, and what is between the linear layers."""
        self.columns, self.gathered = columns, gathered
        self.placements = {
            "words.weight": Shard(1 if columns else 0), "up.weight": Shard(0), "up.bias": Shard(0),
            "down.weight": Shard(1), "down.bias": Replicate(), "head.weight": Shard(0), "head.bias": Shard(0),
        }  # fmt: skip

    def whole(self) -> nn.Module:
        """Return the model on one process."""
        return _WholeModel()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's layers."""
        initialize.destroy_model_parallel()
        initialize.initialize_model_parallel(mesh["tp"].size())
        return _ShardedModel(columns=self.columns, gathered=self.gathered)

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return tokens and labels, each of shape (rows, positions)."""
        tokens, labels = torch.randint(WORDS, (2, ROWS, POSITIONS), generator=generator)
        return tokens, labels
