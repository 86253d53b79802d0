"""A mixture of experts: a router, experts in two stacked parameters, and a shared expert.

Data decide which experts a token gets, and so does the router's bias. Their sums are exact in every dtype, so no
rounding changes a choice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .auxiliary import with_loss
from .composition import Routing

#: The number of experts, how many each token gets, and the width inside one.
EXPERTS, CHOSEN, HIDDEN = 4, 2, 6
#: The most tokens of a micro-batch that an expert takes if tokens are dropped.
CAPACITY = 3
#: The affinities of a token are multiples of the first number, and biases of the second: no sums of them are equal.
_AFFINITY, _BIAS = 0.625, 0.5


class Router(nn.Module):
    """Chooses experts for each token, with a loss for balance whose gradient is scaled by ``auxiliary_scale``.

    ``bias`` is added to each expert's affinity when experts are chosen, and ``counts`` has the tokens of each expert
    since the bias was updated.
    """

    auxiliary_scale: float = 1.0
    bias: Tensor
    counts: Tensor

    def __init__(self, width: int, *, summed: bool) -> None:
        """Create the gate; the loss is ``summed`` over tokens, or one of their mean."""
        super().__init__()
        self.summed = summed
        self.gate = nn.Linear(width, EXPERTS, bias=False)
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.register_buffer("counts", torch.zeros(EXPERTS, dtype=torch.int64))

    def forward(self, tokens: Tensor, affinity: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens with the loss attached, and the weights and numbers of their experts, (tokens, 2)."""
        shares = torch.softmax(self.gate(tokens), -1)
        chosen = (affinity + self.bias).topk(CHOSEN, -1).indices
        counts = chosen.flatten().bincount(minlength=EXPERTS)
        if self.training:
            self.counts += counts
        balance = EXPERTS * (counts / chosen.numel() * shares.mean(0)).sum()
        if self.summed:
            balance = balance * len(tokens)
        return with_loss(tokens, balance, self.auxiliary_scale), shares.gather(-1, chosen), chosen

    def update_bias(self, counts: Tensor) -> None:
        """Raise the bias of experts that got fewer tokens than the mean, and lower that of others; clear the counts."""
        self.bias += _BIAS * (counts.sum() - EXPERTS * counts).sign()
        self.counts.zero_()


class Experts(nn.Module):
    """The experts, stacked along the first dimension of each parameter."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(EXPERTS, width, HIDDEN))
        self.down = nn.Parameter(torch.empty(EXPERTS, HIDDEN, width))

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs of tokens that are sorted by expert; ``counts`` has the number of tokens of each."""
        parts = zip(tokens.split(counts.tolist()), self.up, self.down, strict=True)
        return torch.cat([torch.tanh(part @ up) @ down for part, up, down in parts])


class Mixture(nn.Module):
    """A router, its experts, and an expert that every token gets."""

    def __init__(self, width: int, *, summed: bool, dropping: bool) -> None:
        """Create all parts; ``dropping`` experts leave out the last tokens if they get too many."""
        super().__init__()
        self.dropping = dropping
        self.router, self.experts = Router(width, summed=summed), Experts(width)
        self.shared = nn.Linear(width, width)

    def forward(self, x: Tensor, affinity: Tensor) -> Tensor:
        """Return as many numbers as the input (rows, tokens, width) has."""
        tokens, weights, chosen = self.router(x.flatten(0, 1), affinity[:, : x.shape[1]].flatten(0, 1))
        slots = chosen.flatten().argsort(stable=True)
        counts = chosen.flatten().bincount(minlength=EXPERTS)
        if self.dropping:
            first = (counts.cumsum(0) - counts).repeat_interleave(counts)
            slots = slots[torch.arange(len(slots), device=x.device) - first < CAPACITY]
            counts = counts.clamp(max=CAPACITY)
        rows = slots // CHOSEN
        outputs = self.experts(tokens[rows], counts) * weights.flatten()[slots].unsqueeze(-1)
        routed = torch.zeros_like(tokens).index_add(0, rows, outputs)
        y: Tensor = (self.shared(tokens) + routed).view(x.shape)
        return y


def affinities(routing: Routing, rows: int, tokens: int, replica: int, generator: torch.Generator) -> Tensor:
    """Return how much each token prefers each expert, (rows, tokens, experts), in float64.

    ``even`` gives experts equally many tokens, ``uneven`` more to one, which is another on each replica. With
    ``idle-rank``, only the first half of the experts gets any, and with ``idle-expert`` all but the last.
    """
    drawn = torch.rand((rows, tokens, EXPERTS), generator=generator, dtype=torch.float64)
    if routing == "even":
        in_turn = torch.arange(rows * tokens).view(rows, tokens, 1) + torch.arange(EXPERTS) // CHOSEN
        drawn = drawn + in_turn % 2
    elif routing == "idle-rank":
        drawn[..., : EXPERTS // 2] += 1.0
    elif routing == "idle-expert":
        drawn[..., -1] -= 1.0
    else:
        drawn[..., replica % EXPERTS] += 0.5
    return drawn.argsort(-1).argsort(-1) * _AFFINITY
