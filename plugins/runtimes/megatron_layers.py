"""Divides layers and experts over ranks by Megatron-core's own parallel layers, exchange of tokens and loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.adapter import needed
from gradconform.runtime import StepSpec

from .exchanged_tokens import Exchange, over_replicas
from .parts import Part, fill, padded, shared_layers

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core.parallel_state import (
        get_expert_model_parallel_group,
        get_tensor_model_parallel_rank,
        get_tensor_model_parallel_world_size,
    )
    from megatron.core.tensor_parallel import (
        ColumnParallelLinear,
        RowParallelLinear,
        VocabParallelEmbedding,
        all_to_all,
        gather_from_sequence_parallel_region,
        scatter_to_sequence_parallel_region,
        set_tensor_model_parallel_attributes,
        vocab_parallel_cross_entropy,
    )
    from megatron.core.transformer.transformer_config import TransformerConfig


def divided_layers(
    stages: Mapping[int, nn.Module], spec: StepSpec, config: TransformerConfig
) -> Iterator[tuple[str, Part]]:
    """Replace the shared layers of stages by Megatron's; yield each divided parameter's full name and its part."""
    made: dict[nn.Parameter, nn.Parameter] = {}
    for layer in shared_layers(stages, spec):
        old, style = layer.module, layer.style
        if style == "sequence":
            vars(old)["forward"] = partial(_norm_of_own_rows, old)
            for one in old.parameters():
                one.sequence_parallel = True  # type: ignore[attr-defined] # as Megatron's norms say it
            continue
        new, dim = _layer(old, config, row=style == "row"), 1 if style == "row" else 0
        for which, whole in list(old.named_parameters()):
            if style == "row" and which == "bias":
                fill(getattr(new, which), whole, whole)
                continue
            ranks = get_tensor_model_parallel_world_size()
            own = getattr(new, which)
            start = get_tensor_model_parallel_rank() * own.shape[dim]
            fill(own, whole, padded(whole, dim, ranks * own.shape[dim]).narrow(dim, start, own.shape[dim]))
            if which == "weight":
                set_tensor_model_parallel_attributes(own, is_parallel=True, dim=dim, stride=1)
            # A tied weight stays one parameter.
            setattr(new, which, made.setdefault(whole, own))
            yield f"{layer.name}.{which}", Part(start, whole.shape[dim], dim)
        layer.replace(new)


def _layer(old: Any, config: TransformerConfig, *, row: bool) -> Any:
    """Return Megatron's layer in place of another, with a vocabulary that all ranks divide."""
    if isinstance(old, nn.Embedding):
        words = _rounded_up(old.num_embeddings)
        return VocabParallelEmbedding(words, old.embedding_dim, init_method=nn.init.normal_, config=config)
    outputs, inputs = old.weight.shape
    biased = old.bias is not None
    if row:
        return _Row(
            inputs, outputs, config=config, init_method=nn.init.normal_, bias=biased, input_is_parallel=True,
            skip_bias_add=False,
        )  # fmt: skip
    return _Column(inputs, _rounded_up(outputs), config=config, init_method=nn.init.normal_, bias=biased)


def _rounded_up(count: int) -> int:
    """Return the next number that all ranks divide."""
    ranks: int = get_tensor_model_parallel_world_size()
    return count + -count % ranks


class _Column(ColumnParallelLinear):  # type: ignore[misc] # megatron-core has no types
    """Its layer for an input that every rank has whole; it returns no bias apart."""

    def forward(self, x: Tensor) -> Tensor:
        """Return this rank's outputs."""
        outputs: Tensor = super().forward(own_rows(x) if self.sequence_parallel else x)[0]
        return outputs[: len(x)]


class _Row(RowParallelLinear):  # type: ignore[misc] # megatron-core has no types
    """Its layer for an output that every rank has whole; it returns no bias apart."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over ranks."""
        if self.sequence_parallel:
            return whole_rows(super().forward(_divisible(x))[0], len(x))
        summed: Tensor = super().forward(x)[0]
        return summed


def _norm_of_own_rows(norm: nn.Module, x: Tensor) -> Tensor:
    """Return a norm's outputs for all rows; each rank computes its own."""
    return whole_rows(type(norm).forward(norm, own_rows(x)), len(x))


def own_rows(x: Tensor) -> Tensor:
    """Return this rank's rows of a tensor that every rank has; the last rows may be padding."""
    own: Tensor = scatter_to_sequence_parallel_region(_divisible(x))
    return own


def whole_rows(own: Tensor, count: int) -> Tensor:
    """Return the rows of all ranks; each rank then computes the same with them."""
    every: Tensor = gather_from_sequence_parallel_region(own, tensor_parallel_output_grad=False)
    return every[:count]


def _divisible(x: Tensor) -> Tensor:
    """Return a tensor whose rows all ranks divide: Megatron refuses others."""
    return padded(x, 0, _rounded_up(len(x)))


def divided_loss(spec: StepSpec, words: int, output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a micro-batch from the scores of this rank's words."""
    rank, own = get_tensor_model_parallel_rank(), output.shape[-1]
    real = min(own, words - rank * own)
    # Words that only pad the vocabulary have no share in the softmax.
    scores = F.pad(output[..., :real], (0, own - real), value=-torch.inf)
    counted = spec.counts(target)
    total: Tensor = vocab_parallel_cross_entropy(scores, target)[counted].sum()
    return total / counted.sum() if spec.reduction == "mean" else total


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
            part.allreduce = False  # type: ignore[attr-defined] # as Megatron's experts say it of their parameters
            if over_tensor_ranks:
                set_tensor_model_parallel_attributes(part, is_parallel=True, dim=0, stride=1)
            module.register_parameter(which, part)
            yield f"{name}.{which}", Part(len(part) * rank, len(whole))
        exchange = partial(all_to_all, get_expert_model_parallel_group())
        way = _over_tensor_ranks if over_tensor_ranks else over_replicas
        vars(module)["forward"] = partial(way, module, exchange, ranks)


def _over_tensor_ranks(module: nn.Module, exchange: Exchange, ranks: int, tokens: Tensor, counts: Tensor) -> Tensor:
    """Return the outputs of tokens that all tensor ranks have; each sends its rows of them to their experts."""
    own = own_rows(tokens)
    first = get_tensor_model_parallel_rank() * len(own)
    ends = counts.cumsum(0)
    # Rows of padding go to the last expert.
    ends[-1] = len(own) * ranks
    here = (ends - first).clamp(0, len(own))
    own_counts = torch.diff(here, prepend=here.new_zeros(1))
    return whole_rows(over_replicas(module, exchange, ranks, own, own_counts), len(tokens))
