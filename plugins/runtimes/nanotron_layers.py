"""Divides layers over tensor ranks by nanotron's own parallel layers and loss.

Its released modules import each other in a circle (https://github.com/huggingface/nanotron/issues/191). Import this
module before others that import them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.adapter import needed
from gradconform.runtime import StepSpec

from .parts import Part, fill, padded, shared_layers


def _import_in_order() -> None:
    """Import ``nanotron.logging`` without its configuration, of which it uses one name, as a type hint; then that."""
    if "nanotron.logging" not in sys.modules:
        stand_in = ModuleType("nanotron.config.config")
        vars(stand_in)["LoggingArgs"] = object
        names = ("nanotron.config", stand_in.__name__)
        sys.modules |= dict.fromkeys(names, stand_in)
        try:
            import_module("nanotron.logging")
        finally:
            for name in names:
                del sys.modules[name]
    import_module("nanotron.config")


with needed("nanotron", "pip install 'gradconform[nanotron]'"):
    _import_in_order()
    from nanotron.parallel.tensor_parallel.enum import TensorParallelLinearMode
    from nanotron.parallel.tensor_parallel.functional import sharded_cross_entropy
    from nanotron.parallel.tensor_parallel.nn import (
        TensorParallelColumnLinear,
        TensorParallelEmbedding,
        TensorParallelRowLinear,
    )


def divided_layers(stages: Mapping[int, nn.Module], spec: StepSpec, group: Any) -> Iterator[tuple[str, Part]]:
    """Replace the shared layers of stages by nanotron's; yield each divided parameter's full name and its part.

    The bias of a row layer is on the first tensor rank alone; the parts of other ranks have no rows.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for layer in shared_layers(stages, spec):
        old, style = layer.module, layer.style
        new, dim = _layer(old, group, row=style == "row"), 1 if style == "row" else 0
        for which, whole in list(old.named_parameters()):
            own = getattr(new, which)
            if style == "row" and which == "bias":
                yield f"{layer.name}.{which}", Part(0 if own is not None else len(whole), len(whole))
                if own is not None:
                    fill(own, whole, whole)
                continue
            start = spec.tensor_rank * own.shape[dim]
            wide = padded(whole, dim, spec.tensor_ranks * own.shape[dim])
            fill(own, whole, wide.narrow(dim, start, own.shape[dim]))
            # A tied weight stays one parameter.
            setattr(new, which, made.setdefault(whole, own))
            yield f"{layer.name}.{which}", Part(start, whole.shape[dim], dim)
        layer.replace(new)


def _layer(old: Any, group: Any, *, row: bool) -> Any:
    """Return nanotron's layer in place of another, with a vocabulary that all ranks divide."""
    mode, like = TensorParallelLinearMode.ALL_REDUCE, {"device": old.weight.device, "dtype": old.weight.dtype}
    if isinstance(old, nn.Embedding):
        words = old.num_embeddings + -old.num_embeddings % group.size()
        return TensorParallelEmbedding(words, old.embedding_dim, pg=group, mode=mode, **like)
    outputs, inputs = old.weight.shape
    made = TensorParallelRowLinear if row else TensorParallelColumnLinear
    outputs += 0 if row else -outputs % group.size()
    return made(inputs, outputs, pg=group, mode=mode, bias=old.bias is not None, **like)


def divided_loss(spec: StepSpec, words: int, group: Any, output: Tensor, target: Tensor) -> Tensor:
    """Return the loss of a micro-batch from the scores of this rank's words."""
    own = output.shape[-1]
    real = min(own, words - dist.get_rank(group) * own)
    # Words that only pad the vocabulary have no share in the softmax.
    scores = F.pad(output[..., :real], (0, own - real), value=-torch.inf)
    counted = spec.counts(target)
    total: Tensor = sharded_cross_entropy(scores, target, group)[counted].sum()
    return total / counted.sum() if spec.reduction == "mean" else total
