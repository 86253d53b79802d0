"""Megatron-core's router of experts as a sharded stage: its scores and its auxiliary losses, over a divided sequence.

What is right is the router on one process. It computes an auxiliary loss over all tokens that are no padding; with a
loss per token, it multiplies this loss by the number of these tokens, by which the step later divides.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard

from gradconform.adapter import needed

from .megatron import config_of, gradients_summed, groups_of, norm_of, with_losses

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.transformer_config import TransformerConfig

if not hasattr(moe_utils, "te_general_gemm"):  # the router asks for it even where its import has failed
    moe_utils.te_general_gemm = None

WIDTH, EXPERTS, CHOSEN, POSITIONS, ROWS = 16, 4, 2, 8, 2
BALANCE, SMALL = 0.1, 0.01


class _WholeRouter(nn.Module):
    """A router on one process."""

    def __init__(self, kind: str, *, per_token: bool, small_scores: bool) -> None:
        super().__init__()
        self.kind, self.per_token, self.small_scores = kind, per_token, small_scores
        self.weight = nn.Parameter(torch.randn(EXPERTS, WIDTH) / 4)

    def forward(self, value: Tensor, padding: Tensor) -> Tensor:
        rows = value.shape[1]
        scores = torch.nn.functional.linear(value, self.weight).flatten(0, 1)
        counts = (~padding).flatten().to(scores.dtype)
        tokens = counts.sum()
        if self.small_scores:
            loss = SMALL * (scores.logsumexp(-1).square() * counts).sum() / tokens
            scores = with_losses(scores, loss * tokens if self.per_token else loss)
        chosen = scores.topk(CHOSEN, -1)
        shares = torch.zeros_like(scores).scatter(-1, chosen.indices, chosen.values.softmax(-1))
        if self.kind == "none":
            return shares
        used = torch.zeros_like(scores).scatter(-1, chosen.indices, 1.0) * counts.unsqueeze(-1)
        likely = scores.softmax(-1) * counts.unsqueeze(-1)
        if self.kind == "seq_aux_loss":  # each sequence is balanced, and the mean over sequences counts
            used, likely = (one.view(-1, rows * EXPERTS) for one in (used, likely))
            of_rows = tokens / rows
            loss = (used.sum(0) * likely.sum(0)).sum() * EXPERTS * BALANCE / (CHOSEN * of_rows * of_rows) / rows
        else:
            loss = (used.sum(0) * likely.sum(0)).sum() * EXPERTS * BALANCE / (CHOSEN * tokens * tokens)
        factor = (tokens / rows if self.kind == "seq_aux_loss" else tokens) if self.per_token else 1.0
        return with_losses(shares, loss * factor)


class _ShardedRouter(nn.Module):
    def __init__(self, config: TransformerConfig, *, padded: bool) -> None:
        super().__init__()
        groups = ProcessGroupCollection.use_mpu_process_groups(["tp", "cp", "tp_cp", "tp_dp_cp"])
        self.router = TopKRouter(config, groups)
        self.router.set_layer_number(1)
        self.padded = padded

    def forward(self, value: Tensor, padding: Tensor) -> Tensor:
        shares: Tensor = self.router(value, padding if self.padded else None)[0]
        return shares


class Router:
    """``TopKRouter`` over a sequence that is divided between tensor ranks."""

    name = "megatron-core-router"
    mesh = {"tp": (2, 4)}
    options = {
        "auxiliary": ("none", "aux_loss", "seq_aux_loss"),
        "padded": (False, True),
        "per_token": (False, True),
        "small_scores": (False, True),
    }
    placements = {"router.weight": Replicate()}
    whole_names = {"router.weight": "weight"}
    arg_placements = (Shard(0), Shard(0))
    output_placements = (Shard(0),)

    def __init__(
        self, *, auxiliary: str = "none", padded: bool = False, per_token: bool = False, small_scores: bool = False
    ) -> None:
        """Choose the auxiliary losses."""
        self.auxiliary, self.padded = auxiliary, padded
        self.per_token, self.small_scores = per_token, small_scores

    def whole(self) -> nn.Module:
        """Return the router on one process."""
        return _WholeRouter(self.auxiliary, per_token=self.per_token, small_scores=self.small_scores)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return Megatron's router."""
        groups_of(mesh)
        balanced = self.auxiliary != "none"
        config = config_of(
            mesh["tp"].size(), sequence_parallel=True, num_moe_experts=EXPERTS, moe_router_topk=CHOSEN,
            moe_router_load_balancing_type=self.auxiliary, moe_aux_loss_coeff=BALANCE if balanced else 0.0,
            moe_z_loss_coeff=SMALL if self.small_scores else None, calculate_per_token_loss=self.per_token,
            add_bias_linear=False, moe_router_fusion=False,
        )  # fmt: skip
        return _ShardedRouter(config, padded=self.padded)

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return hidden states of shape (positions, rows, width), and which of (positions, rows) are padding."""
        value = torch.randn(POSITIONS, ROWS, WIDTH, generator=generator)
        padding = torch.zeros(POSITIONS, ROWS, dtype=torch.bool)
        if self.padded:
            padding[POSITIONS // 2 + 1 :] = True
        return value, padding

    def finish(self, module: _ShardedRouter) -> None:
        """Sum the gradients that each rank has for its positions alone."""
        gradients_summed(module, module.router.config)

    def grad_norm(self, module: nn.Module) -> float:
        """Return Megatron's norm."""
        return norm_of(module)
