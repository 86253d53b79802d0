"""Models of transformers as sharded stages: its own tensor-parallel and expert-parallel plans on small models.

The whole stage is the same model without a plan. Rank 0 saves one, and every rank loads its part.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate

from gradconform.adapter import needed

with needed("transformers", "pip install 'transformers>=5.24' accelerate"):
    import accelerate  # noqa: F401 (from_pretrained needs it for a plan)
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PretrainedConfig,
        PreTrainedModel,
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        Trainer,
    )
    from transformers.distributed import DistributedConfig

WORDS, WIDTH, POSITIONS, ROWS = 32, 16, 8, 2

_SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 4, "max_position_embeddings": POSITIONS,
    "initializer_range": 0.2, "use_cache": False,
}  # fmt: skip


class _Loss(nn.Module):
    """A model that returns the mean of the losses of each token's successor."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.model(tokens, labels=tokens).loss
        return loss


class _Planned:
    """A model under a plan. A plan divides some parameters as DTensors; each rank has a copy of the others."""

    model: type[PreTrainedModel]

    def config(self) -> PretrainedConfig:
        """Return the configuration of a small model."""
        raise NotImplementedError

    def plan(self, ranks: int) -> DistributedConfig:
        """Return what divides the model over the ranks."""
        return DistributedConfig(tp_size=ranks)

    def whole(self) -> nn.Module:
        """Return the model on one process, whose experts are linear layers, since a grouped product has no float64."""
        config = self.config()
        config._experts_implementation = "eager"  # noqa: SLF001 (from_pretrained sets it so)
        return _Loss(self.model(config))

    def placements(self) -> dict[str, Any]:
        """Return that parameters are copies, unless the plan divides them."""
        return dict.fromkeys(self.copies, Replicate())

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return this rank's part of the model, loaded from a folder."""
        with tempfile.TemporaryDirectory() as folder:
            shared = [folder]
            dist.broadcast_object_list(shared, 0)
            if dist.get_rank() == 0:
                self.model(self.config()).save_pretrained(shared[0])
            dist.barrier()
            made = self.model.from_pretrained(shared[0], distributed_config=self.plan(mesh.size()))
            dist.barrier()
        module = _Loss(made.train())
        self.copies = [name for name, one in module.named_parameters() if not isinstance(one, DTensor)]
        return module

    def grad_norm(self, module: nn.Module) -> float:
        """Return the norm by which its trainer clips gradients of which some are divided."""
        norm = Trainer._mixed_mesh_grad_norm(None, module, float("inf"))  # noqa: SLF001 (it needs no trainer)
        return float(norm)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return tokens of shape (rows, positions)."""
        return (torch.randint(WORDS, (ROWS, POSITIONS), generator=generator),)


class Llama(_Planned):
    """``LlamaForCausalLM`` under its ``tp_plan``."""

    name = "transformers-llama"
    mesh = {"tp": (2, 4)}
    options = {"biased": (False, True), "tied": (False, True)}
    model = LlamaForCausalLM

    def __init__(self, *, biased: bool = False, tied: bool = False) -> None:
        """Choose whether linear layers have a bias, and whether head and embedding are one parameter."""
        self.biased, self.tied = biased, tied

    def config(self) -> PretrainedConfig:
        """Return the configuration of a small model."""
        biases = {"attention_bias": self.biased, "mlp_bias": self.biased}
        return LlamaConfig(**_SIZES, **biases, tie_word_embeddings=self.tied)


class Qwen3MoE(_Planned):
    """``Qwen3MoeForCausalLM`` under its ``tp_plan``: a dense layer and a layer of experts, with norms of each head."""

    name = "transformers-qwen3-moe"
    mesh = {"tp": (2, 4)}
    options = {"experts": ("divided", "all-to-all", "all-reduce")}
    model = Qwen3MoeForCausalLM

    def __init__(self, *, experts: str = "divided") -> None:
        """Choose the plan of the experts: each is divided over all ranks, or is whole on one of them."""
        self.experts = experts

    def config(self) -> PretrainedConfig:
        """Return the configuration of a small model."""
        return Qwen3MoeConfig(
            **_SIZES, moe_intermediate_size=2 * WIDTH, num_experts=4, num_experts_per_tok=2, mlp_only_layers=[0]
        )

    def plan(self, ranks: int) -> DistributedConfig:
        """Return what divides the model over the ranks."""
        if self.experts == "divided":
            return DistributedConfig(tp_size=ranks)
        way = self.experts.replace("-", "_")
        return DistributedConfig(tp_size=ranks, ep_size=ranks, ep_implementation=way)
