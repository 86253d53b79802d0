"""Divides the experts of stages over replicas or tensor ranks with Megatron-core's exchange of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Tensor, nn

from gradconform.adapter import needed
from gradconform.runtime import StepSpec

from .exchanged_tokens import Exchange, over_replicas
from .megatron_layers import Part, own_rows, whole_rows

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel import all_to_all, set_tensor_model_parallel_attributes


def divided_experts(stages: Mapping[int, nn.Module], spec: StepSpec) -> Iterator[tuple[str, Part]]:
    """Keep this rank's experts; yield each divided parameter's full name and its part."""
    for name, style in spec.experts.items():
        index, _, inner = name.partition(".")
        if style == "whole" or int(index) not in stages:
            continue
        module = stages[int(index)].get_submodule(inner)
        over_tensor_ranks = style == "tensor"
        ranks, rank = (spec.tensor_ranks, spec.tensor_rank) if over_tensor_ranks else (spec.replicas, spec.replica)
        for which, whole in list(module.named_parameters()):
            part = nn.Parameter(whole.detach().chunk(ranks)[rank].clone(), whole.requires_grad)
            # As Megatron's experts say it of their parameters.
            part.allreduce = False  # type: ignore[attr-defined]
            if over_tensor_ranks:
                set_tensor_model_parallel_attributes(part, is_parallel=True, dim=0, stride=1)
            module.register_parameter(which, part)
            yield f"{name}.{which}", Part(len(part) * rank, len(whole))
        exchange = partial(all_to_all, parallel_state.get_expert_model_parallel_group())
        way = _over_tensor_ranks if over_tensor_ranks else over_replicas
        vars(module)["forward"] = partial(way, module, exchange, ranks)


def _over_tensor_ranks(module: nn.Module, exchange: Exchange, ranks: int, tokens: Tensor, counts: Tensor) -> Tensor:
    """Return the outputs of tokens that all tensor ranks have; each sends its rows of them to their experts."""
    own = own_rows(tokens)
    first = parallel_state.get_tensor_model_parallel_rank() * len(own)
    ends = counts.cumsum(0)
    # Rows of padding go to the last expert.
    ends[-1] = len(own) * ranks
    here = (ends - first).clamp(0, len(own))
    own_counts = torch.diff(here, prepend=here.new_zeros(1))
    return whole_rows(over_replicas(module, exchange, ranks, own, own_counts), len(tokens))
