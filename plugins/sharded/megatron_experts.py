"""Megatron-core's layer of experts as a sharded stage: experts over ranks that are replicas, in its own wrapper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from gradconform.adapter import needed

from .megatron import config_of, groups_of, norm_of
from .megatron_router import CHOSEN, EXPERTS, WIDTH

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
    from megatron.core.transformer.moe import token_dispatcher
    from megatron.core.transformer.spec_utils import build_module

POSITIONS, ROWS = 6, 4


def _as_numbers(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:  # noqa: FBT001, FBT002 (Megatron's)
    """Return numbers of tokens as a collective takes them; Megatron does this for CUDA's tensors alone."""
    return tensor.cpu().numpy() if as_numpy and isinstance(tensor, Tensor) else tensor


class _WholeMLP(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, inner, bias=False), nn.Linear(inner, WIDTH, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.down(F.gelu(self.up(value)))
        return found


class _WholeExperts(nn.Module):
    """A router and all experts on one process."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(_WholeMLP(2 * WIDTH) for _ in range(EXPERTS))
        self.shared = _WholeMLP(2 * WIDTH) if shared else None

    def forward(self, value: Tensor) -> Tensor:
        chosen = self.router(value).topk(CHOSEN, -1)
        shares = torch.zeros(*value.shape[:-1], EXPERTS, dtype=value.dtype)
        shares = shares.scatter(-1, chosen.indices, chosen.values.softmax(-1))
        found = torch.zeros_like(value) if self.shared is None else self.shared(value)
        for place, expert in enumerate(self.experts):
            found = found + expert(value) * shares[..., [place]]
        return found


class _Wrapped(nn.Module):
    """The layer in Megatron's wrapper, which has the gradients in buffers of its own."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.wrapper = DistributedDataParallel(layer.config, DistributedDataParallelConfig(), layer)

    def forward(self, value: Tensor) -> Tensor:
        found: Tensor = self.wrapper(value)[0]
        return found


class Experts:
    """``MoELayer`` over ranks that each have other tokens and other experts."""

    name = "megatron-core-experts"
    mesh = {"ep": (2, 4)}
    options = {"dispatcher": ("alltoall", "allgather"), "shared_expert": (False, True)}
    arg_placements = (Shard(1),)
    output_placements = (Shard(1),)
    unsupported = ("before", "weights")

    def __init__(self, *, dispatcher: str = "alltoall", shared_expert: bool = False) -> None:
        """Choose how tokens reach their experts, and whether one expert has all tokens."""
        self.dispatcher, self.shared_expert = dispatcher, shared_expert

    def placements(self) -> Mapping[str, Any]:
        """Return that each rank has whole parameters: its experts, and copies of the others."""
        prefix = "wrapper.module."
        local = range(EXPERTS // self.ranks)
        own = [f"{prefix}experts.local_experts.{place}.linear_fc{n}.weight" for place in local for n in (1, 2)]
        shared = [f"{prefix}shared_experts.linear_fc{n}.weight" for n in (1, 2)] if self.shared_expert else []
        return dict.fromkeys([f"{prefix}router.weight", *own, *shared], Replicate())

    def whole_names(self, name: str, coordinate: Mapping[str, int]) -> str:
        """Return the whole stage's name: a rank counts its experts from 0."""
        words = name.removeprefix("wrapper.module.").split(".")
        layer = {"linear_fc1": "up", "linear_fc2": "down"}.get(words[-2], "")
        if words[0] == "shared_experts":
            return f"shared.{layer}.weight"
        if words[0] == "experts":
            first = EXPERTS // self.ranks * coordinate["ep"]
            return f"experts.{first + int(words[2])}.{layer}.weight"
        return "router.weight"

    def whole(self) -> nn.Module:
        """Return the layer on one process."""
        return _WholeExperts(shared=self.shared_expert)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return Megatron's layer with this rank's experts."""
        groups_of(mesh)
        token_dispatcher.maybe_move_tensor_to_cpu = _as_numbers
        self.ranks = mesh["ep"].size()
        config = config_of(
            1, expert_model_parallel_size=self.ranks, num_moe_experts=EXPERTS, moe_router_topk=CHOSEN,
            moe_router_load_balancing_type="none", moe_token_dispatcher_type=self.dispatcher, add_bias_linear=False,
            moe_shared_expert_intermediate_size=2 * WIDTH if self.shared_expert else None,
        )  # fmt: skip
        layer = build_module(
            get_moe_module_spec(use_te=False, num_experts=EXPERTS, moe_grouped_gemm=False), config=config
        )
        layer.set_layer_number(1)
        return _Wrapped(layer)

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return hidden states of shape (positions, rows, width)."""
        return (torch.randn(POSITIONS, ROWS, WIDTH, generator=generator),)

    def finish(self, module: _Wrapped) -> None:
        """Let Megatron reduce its buffers, and return their gradients as sums over the replicas, not means."""
        finalize_model_grads([module.wrapper])
        replicas = parallel_state.get_data_parallel_world_size()
        for one in module.parameters():
            one.grad = one.main_grad * replicas  # type: ignore[attr-defined] # the wrapper sets it
        module.wrapper.zero_grad_buffer()

    def grad_norm(self, module: nn.Module) -> float:
        """Return Megatron's norm."""
        return norm_of(module)
