"""Experts of a stage in the mixture-of-experts layer of DeepSpeed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradconform.adapter import needed
from gradconform.runtime import StepSpec

with needed("deepspeed", "pip install 'gradconform[deepspeed]'"):
    from deepspeed.moe.layer import MoE
    from deepspeed.moe.sharded_moe import MOELayer


def divide(stages: Mapping[int, nn.Module], spec: StepSpec) -> Iterator[tuple[str, int]]:
    """Keep this rank's experts; yield each divided parameter's full name and the number of experts of all ranks.

    Tokens reach experts through a layer of DeepSpeed, from whose type the engine learns that there are experts.
    """
    for name, style in spec.experts.items():
        index, _, inner = name.partition(".")
        if style == "whole" or int(index) not in stages:
            continue
        module = stages[int(index)].get_submodule(inner)
        layer = _Experts(module, len(next(module.parameters())), spec.replicas)
        for which, whole in list(module.named_parameters()):
            part = nn.Parameter(whole.detach().chunk(spec.replicas)[spec.replica].clone(), whole.requires_grad)
            part.allreduce, part.group_name = False, layer.expert_group_name  # type: ignore[attr-defined] # as its experts
            module.register_parameter(which, part)
            yield f"{name}.{which}", len(whole)
        vars(module)["forward"] = layer.deepspeed_moe
        stages[int(index)].add_module("deepspeed_experts", layer)


class _Experts(MoE):  # type: ignore[misc] # deepspeed has no types
    """The layer of DeepSpeed on the experts of a stage, which are outside it, with the routing of the stage."""

    def __init__(self, module: nn.Module, experts: int, ranks: int) -> None:
        nn.Module.__init__(self)
        self.num_experts, self.ep_size = experts, ranks
        self.enable_expert_tensor_parallelism = False
        self.expert_group_name = f"ep_size_{ranks}"
        outputs = partial(_outputs, module)
        self.deepspeed_moe = MOELayer(_Routed(), outputs, self.expert_group_name, ranks, experts // ranks)


class _Routed(nn.Module):
    """The gate of rows that are sorted by expert: each has one expert and the weight 1, and none is dropped."""

    group: dist.ProcessGroup | None = None

    def _set_ep_group(self, group: dist.ProcessGroup) -> None:
        self.group = group

    def forward(self, rows: Tensor, counts: Tensor, *options: object) -> tuple[object, ...]:
        """Return what the layer reads: no loss, the capacity, the number of experts, and for each row its place."""
        del options
        capacity = counts.max().clone()
        dist.all_reduce(capacity, op=dist.ReduceOp.MAX, group=self.group)
        experts = torch.arange(len(counts), device=rows.device).repeat_interleave(counts)
        places = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        return (
            rows.new_zeros(()),
            capacity,
            len(counts),
            experts[None],
            places[None],
            rows.new_ones(1, len(rows)),
            counts,
        )


def _outputs(module: nn.Module, arrived: Tensor) -> Tensor:
    """Return the outputs of this rank's experts for rows by rank of origin, expert and place."""
    ranks, own, capacity, width = arrived.shape
    rows = arrived.transpose(0, 1).reshape(-1, width)
    found: Tensor = type(module).forward(module, rows, torch.full((own,), ranks * capacity, device=rows.device))
    return found.view(own, ranks, capacity, width).transpose(0, 1)
