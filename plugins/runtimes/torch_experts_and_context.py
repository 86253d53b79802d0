"""Divides experts and sequences over ranks with torch's collectives and distributed tensors.

Experts pass tokens on as torchtitan's do. ``context_parallel`` of torch replaces kernels that only run on CUDA, so
attention is on distributed tensors: queries stay divided by positions, and torch gathers keys and values, and scatters
the sums of their gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradconform.runtime import ContextStyle, ExpertStyle, own_positions
from gradconform.torch_releases.distributed_tensors import ALL_TO_ALL

from .exchanged_tokens import over_replicas
from .torch_tensor_parallel import Laid


def divide(
    stage: nn.Module, index: int, experts: Mapping[str, ExpertStyle], mesh: DeviceMesh, *, plain: bool
) -> Iterator[tuple[str, Laid]]:
    """Keep this rank's part of the divided experts of a stage; yield each parameter's name in it and its placement.

    The ranks of ``mesh`` divide them. If ``plain``, the parts are plain tensors.
    """
    forwards = {"replicas": _over_replicas, "tensor": _over_tensor_ranks}
    for full, style in experts.items():
        number, _, name = full.partition(".")
        if int(number) != index or style == "whole":
            continue
        module = stage.get_submodule(name)
        for which, whole in list(module.named_parameters()):
            # Every rank has the whole parameter, so nothing is sent.
            part = distribute_tensor(whole.detach(), mesh, [Shard(0)], src_data_rank=None)
            yield f"{name}.{which}", Laid(mesh, part.placements, part.shape, part.stride())
            own = part.to_local().clone() if plain else part
            module.register_parameter(which, nn.Parameter(own, requires_grad=whole.requires_grad))
        vars(module)["forward"] = partial(forwards[style], module, mesh)


def _over_replicas(module: nn.Module, mesh: DeviceMesh, tokens: Tensor, counts: Tensor) -> Tensor:
    """Return the outputs of this replica's tokens, which torch sends to the ranks of their experts."""
    exchange = partial(ALL_TO_ALL.find(), group=mesh.get_group())
    return over_replicas(module, exchange, mesh.size(), tokens, counts)


def _over_tensor_ranks(module: nn.Module, mesh: DeviceMesh, tokens: Tensor, counts: Tensor) -> Tensor:
    """Return the outputs of tokens that all tensor ranks have; each computes those of its own experts."""
    every = DTensor.from_local(tokens, mesh, [Replicate()], run_check=False).to_local(grad_placements=[Partial()])
    ends, each = [0, *counts.cumsum(0).tolist()], len(counts) // mesh.size()
    first = each * mesh.get_local_rank()
    start, end = ends[first], ends[first + each]
    local = SimpleNamespace(
        **{name: one.to_local() if isinstance(one, DTensor) else one for name, one in module.named_parameters()}
    )
    outputs = type(module).forward(local, every[start:end], counts[first : first + each])
    around = F.pad(outputs, (0, 0, start, len(tokens) - end))
    summed: Tensor = DTensor.from_local(around, mesh, [Partial()], run_check=False).full_tensor()
    return summed


def share_sequences(
    stages: Mapping[int, nn.Module], mesh: DeviceMesh, attentions: Sequence[str], style: ContextStyle
) -> None:
    """Make the attentions of stages, named in full, attend to the positions of all ranks of a mesh."""
    for full in attentions:
        number, _, name = full.partition(".")
        if int(number) in stages:
            vars(stages[int(number)].get_submodule(name))["forward"] = partial(_attended, mesh, style)


def _attended(mesh: DeviceMesh, style: ContextStyle, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the causal attention of this rank's positions to those of all ranks."""
    length, ranks = query.shape[1] * mesh.size(), range(mesh.size())
    every = torch.tensor([own_positions(style, rank, len(ranks), length) for rank in ranks], device=query.device)
    mask = every[mesh.get_local_rank()][:, None] >= every.flatten()
    queries, keys, values = (DTensor.from_local(one, mesh, [Shard(1)], run_check=False) for one in (query, key, value))
    with sdpa_kernel(SDPBackend.MATH):
        found: Any = F.scaled_dot_product_attention(
            queries,
            keys.redistribute(placements=[Replicate()]),
            values.redistribute(placements=[Replicate()]),
            attn_mask=DTensor.from_local(mask, mesh, [Shard(0)], run_check=False),
        )
    own: Tensor = found.to_local()
    return own
