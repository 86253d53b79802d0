"""Right variants of sequences that replicas share, each with one difference from the plain runtime."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch, ModuleSession

from .step_registry import right

_SHARED = ("context", "mean-of-halves", "half-ignored", "halves clipped")


@right(*_SHARED)
class AttendedBlockByBlock(PlainSession):
    """Attends to the keys of one rank at a time, and joins the results as a ring does."""

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, width = query.shape[1] * self.spec.replicas, query.shape[-1]
        own = torch.tensor(self.positions_of(self.spec.replica, length))
        keys, values = (self.of_all_ranks(one).chunk(self.spec.replicas, 1) for one in (key, value))
        outputs, sums = [], []
        for replica in range(self.spec.replicas):
            seen = self.mask(own, torch.tensor(self.positions_of(replica, length)))
            # A position that sees no key of a block must not become NaN there.
            scores = (query @ keys[replica].transpose(-1, -2) / width**0.5).masked_fill(~seen, -1e9)
            sums.append(scores.logsumexp(-1))
            outputs.append(scores.softmax(-1) @ values[replica])
        shares = torch.stack(sums).softmax(0).unsqueeze(-1)
        return (torch.stack(outputs) * shares).sum(0)


@right(*_SHARED)
class KeysFromTheLastRank(PlainSession):
    """Attends to the keys of the last rank first."""

    def attended(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = query.shape[1] * self.spec.replicas
        order = [place for place in reversed(range(self.spec.replicas)) for _ in range(query.shape[1])]
        places = torch.tensor(order) * query.shape[1] + torch.arange(query.shape[1]).repeat(self.spec.replicas)
        every = torch.tensor([self.positions_of(replica, length) for replica in range(self.spec.replicas)])
        seen = self.mask(every[self.spec.replica], every.flatten()[places])
        keys, values = self.of_all_ranks(key)[:, places], self.of_all_ranks(value)[:, places]
        return nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen)


@right("context", "half-ignored", "ddp-tokens", experts="dense")
class DividedAfterReduction(PlainSession):
    """Divides gradients by the number of tokens after their reduction."""

    def step(self, batch: Batch) -> list[Tensor] | None:
        self.all_tokens = super().tokens(batch)
        return super().step(batch)

    def tokens(self, batch: Batch) -> float:
        del batch
        return 1.0

    def reduce(self) -> None:
        super().reduce()
        for _, parameter in ModuleSession.named(self, "named_parameters"):
            if parameter.grad is not None and self.spec.reduction == "tokens":
                parameter.grad = parameter.grad / self.all_tokens
