"""Layers of DeepSpeed as sharded stages: its experts, and its attention over a divided sequence.

An engine reduces the gradients. It averages them over the ranks with other tokens, and the stage has their sums.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

import gradconform.plugins.adapters.deepspeed  # noqa: F401 (it stops DeepSpeed from compiling an extension)
from gradconform.adapter import needed

with needed("deepspeed", "pip install 'gradconform[deepspeed]'"):
    import deepspeed
    from deepspeed.moe.layer import MoE
    from deepspeed.runtime.sequence_parallel import parallel_state_sp
    from deepspeed.runtime.utils import clip_grad_norm_
    from deepspeed.sequence.layer import DistributedAttention
    from deepspeed.utils import groups

WIDTH, EXPERTS, HEADS, POSITIONS, ROWS = 16, 4, 8, 16, 2


def start() -> None:
    """Let DeepSpeed take the process group that is there, and forget the groups of another stage."""
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    deepspeed.init_distributed(dist.get_backend(), auto_mpi_discovery=False, verbose=False)
    groups.mpu = groups.mesh_device = None
    parallel_state_sp._release_sequence_parallel_groups()  # noqa: SLF001 (no public name forgets them)


def engine_of(module: nn.Module, **given: Any) -> Any:
    """Return an engine for a module; it has no optimizer, because it only reduces gradients."""
    config = {"train_micro_batch_size_per_gpu": 1, "steps_per_print": 10**9}
    return deepspeed.initialize(model=module, config=config, **given)[0]


class _InEngine(nn.Module):
    """A layer whose gradients an engine reduces."""

    def __init__(self, layer: nn.Module, **given: Any) -> None:
        super().__init__()
        self.layer = layer
        self._engine = [engine_of(layer, **given)]  # in a list, since an engine is a module with the same parameters

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.layer(value)
        return found

    def reduced(self) -> None:
        """Reduce the gradients over the ranks."""
        self._engine[0].buffered_allreduce_fallback()


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


class _WholeExperts(nn.Module):
    """A gate and all experts on one process."""

    def __init__(self, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(_mlp() for _ in range(EXPERTS))

    def forward(self, value: Tensor) -> Tensor:
        chosen = self.gate(value).softmax(-1).topk(self.chosen, -1)
        weights = chosen.values if self.chosen == 1 else chosen.values / chosen.values.sum(-1, keepdim=True)
        shares = torch.zeros(*value.shape[:-1], EXPERTS, dtype=value.dtype).scatter(-1, chosen.indices, weights)
        return torch.stack([one(value) * shares[..., [i]] for i, one in enumerate(self.experts)]).sum(0)


class _Experts(nn.Module):
    """DeepSpeed's layer, which returns more than its outputs."""

    def __init__(self, ranks: int, chosen: int) -> None:
        super().__init__()
        self.moe = MoE(
            WIDTH, _mlp(), EXPERTS, ranks, k=chosen, drop_tokens=False, use_rts=False, top2_2nd_expert_sampling=False
        )

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.moe(value)[0]
        return found


class Experts:
    """``MoE`` over ranks that each have other tokens and other experts, without dropped tokens."""

    name = "deepspeed-experts"
    mesh = {"ep": (2, 4)}
    options = {"chosen": (1, 2, 3)}
    arg_placements = (Shard(0),)
    output_placements = (Shard(0),)

    def __init__(self, *, chosen: int = 1) -> None:
        """Choose the number of experts of a token."""
        self.chosen = chosen

    def placements(self) -> Mapping[str, Any]:
        """Return that each rank has whole parameters: its experts, and a copy of the gate."""
        own = [
            f"{_PREFIX}experts.deepspeed_experts.{i}.{n}.{kind}"
            for i in range(EXPERTS // self.ranks) for n in (0, 2) for kind in ("weight", "bias")
        ]  # fmt: skip
        return dict.fromkeys([f"{_PREFIX}gate.wg.weight", *own], Replicate())

    def whole_names(self, name: str, coordinate: Mapping[str, int]) -> str:
        """Return the whole stage's name: a rank counts its experts from 0."""
        words = name.removeprefix(_PREFIX).split(".")
        if words[0] == "gate":
            return "gate.weight"
        first = EXPERTS // self.ranks * coordinate["ep"]
        return f"experts.{first + int(words[2])}.{'.'.join(words[3:])}"

    def whole(self) -> nn.Module:
        """Return the layer on one process."""
        return _WholeExperts(self.chosen)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return DeepSpeed's layer with this rank's experts."""
        start()
        self.ranks = mesh.size()
        return _InEngine(_Experts(self.ranks, self.chosen))

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return hidden states of shape (positions, rows, width)."""
        return (torch.randn(POSITIONS, ROWS, WIDTH, generator=generator),)

    def finish(self, module: _InEngine) -> None:
        """Let the engine average the gradients, and return sums."""
        module.reduced()
        for one in module.parameters():
            if one.grad is not None:
                one.grad *= self.ranks

    def grad_norm(self, module: nn.Module) -> float:
        """Return the norm by which DeepSpeed clips."""
        return float(clip_grad_norm_(module.parameters(), float("inf")))


_PREFIX = "layer.moe.deepspeed_moe."


class _Attention(nn.Module):
    """Causal attention with projections; positions come first or rows."""

    def __init__(self, heads: tuple[int, int], *, rows_first: bool, group: Any = None) -> None:
        super().__init__()
        self.heads, self.rows_first = heads, rows_first
        query, key = heads
        self.qkv = nn.Linear(WIDTH, (query + 2 * key) * 4, bias=False)
        self.proj = nn.Linear(query * 4, WIDTH)
        self.local = _Local(rows_first=rows_first)
        if group is not None:
            self.local = DistributedAttention(self.local, group, 2, 1 if rows_first else 0)

    def forward(self, value: Tensor) -> Tensor:
        query, key = self.heads
        parts = self.qkv(value).unflatten(-1, (-1, 4)).split([query, key, key], -2)
        more = (0 if self.rows_first else 1,) if isinstance(self.local, DistributedAttention) else ()
        found: Tensor = self.proj(self.local(*parts, *more).flatten(2))
        return found


class _Local(nn.Module):
    """Causal attention of some heads over a whole sequence."""

    def __init__(self, *, rows_first: bool) -> None:
        super().__init__()
        self.rows_first = rows_first

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        order = (0, 2, 1, 3) if self.rows_first else (1, 2, 0, 3)
        back = (0, 2, 1, 3) if self.rows_first else (2, 0, 1, 3)
        query, key, value = (one.permute(order) for one in (query, key, value))
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return found.permute(back)


class SequenceAttention:
    """``DistributedAttention`` over a divided sequence: all-to-all gives each rank whole sequences of some heads."""

    name = "deepspeed-sequence-attention"
    mesh = {"sp": (2, 4)}
    options = {"heads": ("even", "grouped", "uneven"), "first": ("rows", "positions"), "groups": ("mpu", "mesh")}
    placements = dict.fromkeys(("layer.qkv.weight", "layer.proj.weight", "layer.proj.bias"), Replicate())
    whole_names = {name: name.removeprefix("layer.") for name in placements}

    def __init__(self, *, heads: str = "even", first: str = "rows", groups: str = "mpu") -> None:
        """Choose the numbers of heads, the first dimension of activations, and what tells the engine its groups."""
        self.groups = groups
        self.heads = {"even": (8, 8), "grouped": (8, 4), "uneven": (5, 5)}[heads]
        self.rows_first = first == "rows"
        self.arg_placements = self.output_placements = (Shard(1 if self.rows_first else 0),)

    def whole(self) -> nn.Module:
        """Return the layer on one process."""
        return _Attention(self.heads, rows_first=self.rows_first)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return the layer with DeepSpeed's attention."""
        start()
        layer = _Attention(self.heads, rows_first=self.rows_first, group=mesh.get_group("sp"))
        if self.groups == "mesh":
            return _InEngine(layer, mesh_param=(1, mesh.size()))
        parallel_state_sp.initialize_sequence_parallel(mesh.size())
        return _InEngine(layer, mpu=parallel_state_sp)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return hidden states of shape (rows, positions, width), or with positions first."""
        value = torch.randn(ROWS, POSITIONS, WIDTH, generator=generator)
        return (value if self.rows_first else value.transpose(0, 1).contiguous(),)

    def finish(self, module: _InEngine) -> None:
        """Let the engine sum the gradients of each rank's positions."""
        module.reduced()
