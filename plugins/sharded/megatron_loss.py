"""Megatron-core's mean over tokens as a sharded stage: ``forward_step_calc_loss`` over a divided sequence.

A loss function returns the sum of the losses of this rank's tokens and their number, as Megatron's training loop does.
The wrapper averages gradients over the ranks that share the sequence.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.nn import functional as F

from gradconform.adapter import needed

from .megatron import WIDTH, WORDS, config_of, groups_of

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig

POSITIONS, ROWS = 8, 2


class _WholeLoss(nn.Module):
    """Embeddings, a head, and the mean of the losses of the tokens that count."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        return (_losses(self.words, self.head, tokens, labels) * counts.flatten()).sum() / counts.sum()


def _losses(words: nn.Embedding, head: nn.Linear, tokens: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(head(words(tokens)).flatten(0, 1), labels.flatten(), reduction="none")


class _Head(MegatronModule):  # type: ignore[misc] # megatron-core has no types
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        return _losses(self.words, self.head, tokens, labels)


class _ShardedLoss(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.wrapper = DistributedDataParallel(config, DistributedDataParallelConfig(), _Head(config))

    def forward(self, tokens: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        losses = self.wrapper(tokens, labels)

        def loss_function(_: Tensor) -> tuple[Tensor, Tensor, dict[str, Any]]:
            return (losses * counts.flatten()).sum(), counts.sum().int(), {}

        loss: Tensor = forward_step_calc_loss(
            SimpleNamespace(), losses, loss_function, self.config, vp_stage=None, collect_non_loss_data=False,
            num_microbatches=1, forward_data_store=[],
        )[0]  # fmt: skip
        return loss


class MaskedLoss:
    """The mean over the tokens that count, of a sequence that is divided over ranks."""

    name = "megatron-core-masked-loss"
    mesh = {"cp": (2, 4)}
    options = {"counts": ("equal", "unequal", "none-on-one")}
    whole_names = {f"wrapper.module.{name}.weight": f"{name}.weight" for name in ("words", "head")}
    placements = dict.fromkeys(whole_names, Replicate())
    arg_placements = (Shard(0), Shard(0), Shard(0))
    output_placements = (Partial("avg"),)
    unsupported = ("before", "weights")

    def __init__(self, *, counts: str = "equal") -> None:
        """Choose how many tokens of each rank count."""
        self.counts = counts

    def whole(self) -> nn.Module:
        """Return the head and the mean on one process."""
        return _WholeLoss()

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return Megatron's wrapper around the head."""
        groups_of(mesh)
        return _ShardedLoss(config_of(1, context_parallel_size=mesh["cp"].size()))

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, labels, and which tokens count, each of shape (positions, rows)."""
        tokens, labels = torch.randint(WORDS, (2, POSITIONS, ROWS), generator=generator)
        counts = torch.ones(POSITIONS, ROWS, dtype=torch.int64)
        counts[{"equal": POSITIONS, "unequal": POSITIONS - 1, "none-on-one": POSITIONS // 2}[self.counts] :] = 0
        return tokens, labels, counts

    def finish(self, module: _ShardedLoss) -> None:
        """Let Megatron reduce its buffers."""
        finalize_model_grads([module.wrapper])
        for one in module.parameters():
            one.grad = one.main_grad.clone()  # type: ignore[attr-defined] # the wrapper sets it
        module.wrapper.zero_grad_buffer()
