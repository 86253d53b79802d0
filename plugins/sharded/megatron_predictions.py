"""Megatron-core's prediction of two tokens as a sharded stage: ``GPTModel`` with a block that predicts the second.

The second token's loss is no output: the model adds its gradient to that of the hidden states.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.nn import functional as F

from gradconform.adapter import needed

from .megatron import (
    GPT_PARAMETERS,
    LAYER_PARAMETERS,
    POSITIONS,
    ROWS,
    WIDTH,
    WORDS,
    Norm,
    WholeLayer,
    config_of,
    gradients_summed,
    groups_of,
    layers,
    norm_of,
    with_losses,
)

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_mtp_block_spec

#: The factor of the second token's loss.
SECOND = 0.3


def _next(value: Tensor) -> Tensor:
    """Return the value of the next position, and 0 at the last."""
    return F.pad(value[:, 1:], (0, 1))


class _WholePrediction(nn.Module):
    """What predicts the second token: both norms, their projection, a layer and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.of_words, self.of_hidden, self.norm = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.join = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.layer = WholeLayer(sink=False)

    def forward(self, words: Tensor, hidden: Tensor) -> Tensor:
        joined = self.join(torch.cat((self.of_words(words), self.of_hidden(hidden)), -1))
        found: Tensor = self.norm(self.layer(joined))
        return found


class _WholeModel(nn.Module):
    """Embeddings, a layer, a norm, a head, the second token's block, and the loss of each token."""

    def __init__(self, *, per_token: bool) -> None:
        super().__init__()
        self.per_token = per_token
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.layer, self.norm = WholeLayer(sink=False), nn.LayerNorm(WIDTH)
        self.second = _WholePrediction()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        places = torch.arange(POSITIONS).expand_as(tokens)
        hidden = self.norm(self.layer(self._embedded(tokens, places)))
        second = self.second(self._embedded(_next(tokens), _next(places)), hidden)
        losses = self._losses(second, _next(labels)) * _next(counts)
        losses = losses if self.per_token else losses / _next(counts).sum()
        return self._losses(with_losses(hidden, SECOND * losses), labels)

    def _embedded(self, tokens: Tensor, places: Tensor) -> Tensor:
        found: Tensor = (self.words(tokens) + self.places(places)).transpose(0, 1)
        return found

    def _losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(hidden).transpose(0, 1)
        losses: Tensor = F.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
        return losses.view_as(labels)


class _ShardedModel(nn.Module):
    """Megatron's model, called with what its training loop gives it."""

    def __init__(self, model: GPTModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        places = torch.arange(POSITIONS).expand_as(tokens)
        hidden = torch.ones(1, 1, POSITIONS, POSITIONS, dtype=torch.bool).triu(1)
        losses: Tensor = self.model(tokens, places, hidden, labels=labels, loss_mask=counts)
        return losses


_SECOND = "model.mtp.layers.0."
#: As ``GPT_PARAMETERS``, with the second token's block.
_PARAMETERS: dict[str, tuple[str, Any]] = {
    **{own: parts for own, parts in GPT_PARAMETERS.items() if parts[0] != "layer.sink"},
    **{
        f"{_SECOND}transformer_layer.{own}": (f"second.layer.{whole}", placement)
        for own, (whole, placement) in LAYER_PARAMETERS.items()
        if whole != "sink"
    },
    f"{_SECOND}eh_proj.weight": ("second.join.weight", Shard(0)),
    **{
        f"{_SECOND}{own}.{kind}": (f"second.{whole}.{kind}", Replicate())
        for own, whole in (("enorm", "of_words"), ("hnorm", "of_hidden"), ("final_layernorm", "norm"))
        for kind in ("weight", "bias")
    },
}


class TwoTokens:
    """A ``GPTModel`` with ``mtp_num_layers=1``: the loss of each token, and the gradient of the second one's loss."""

    name = "megatron-core-two-tokens"
    mesh = {"tp": (2, 4)}
    options = {"sequence_parallel": (False, True), "masked": (False, True), "per_token": (False, True)}
    whole_names = {own: whole for own, (whole, _) in _PARAMETERS.items()}
    placements = {own: placement for own, (_, placement) in _PARAMETERS.items()}

    def __init__(self, *, sequence_parallel: bool = False, masked: bool = False, per_token: bool = False) -> None:
        """Choose whether all tokens count, and whether the second loss is a sum (``per_token``) or a mean."""
        self.sequence_parallel, self.masked, self.per_token = sequence_parallel, masked, per_token

    def whole(self) -> nn.Module:
        """Return the model on one process, in torch alone."""
        return _WholeModel(per_token=self.per_token)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return Megatron's model on this rank."""
        groups_of(mesh)
        config = config_of(
            mesh["tp"].size(), sequence_parallel=self.sequence_parallel, mtp_num_layers=1,
            mtp_loss_scaling_factor=SECOND, calculate_per_token_loss=self.per_token,
        )  # fmt: skip
        spec = layers()
        block = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
        own = block.layer_specs[0].submodules
        own.enorm = own.hnorm = own.layer_norm = Norm
        model = GPTModel(config, spec, vocab_size=WORDS, max_sequence_length=POSITIONS, mtp_block_spec=block)
        return _ShardedModel(model)

    def args(self, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens, labels, and which tokens count, each of shape (rows, positions)."""
        tokens, labels = torch.randint(WORDS, (2, ROWS, POSITIONS), generator=generator)
        counts = torch.ones(ROWS, POSITIONS, dtype=torch.int64)
        if self.masked:
            counts[0, POSITIONS // 2 :] = 0
        return tokens, labels, counts

    def finish(self, module: _ShardedModel) -> None:
        """Sum the gradients that each rank has for its positions alone, as ``finalize_model_grads`` does."""
        gradients_summed(module, module.model.config)

    def grad_norm(self, module: nn.Module) -> float:
        """Return Megatron's norm."""
        return norm_of(module)
