"""The way of tokens to experts of other replicas and back, by the exchange of a runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

#: Returns the rows of all ranks for this one: takes a tensor, and the numbers of rows received and sent, rank by rank.
Exchange = Callable[[Tensor, Sequence[int] | None, Sequence[int] | None], Tensor]


def over_replicas(module: nn.Module, exchange: Exchange, ranks: int, tokens: Tensor, counts: Tensor) -> Tensor:
    """Return the outputs of this replica's tokens, which pass to the ranks of their experts and back."""
    sent = counts.view(ranks, -1).sum(1).tolist()
    arriving = exchange(counts, None, None).view(ranks, -1)
    received = arriving.sum(1).tolist()
    tokens = exchange(tokens, received, sent)
    experts = torch.arange(arriving.shape[1], device=tokens.device).repeat(ranks)
    order = experts.repeat_interleave(arriving.flatten()).argsort(stable=True)
    outputs = type(module).forward(module, tokens[order], arriving.sum(0))
    return exchange(outputs[order.argsort()], sent, received)
