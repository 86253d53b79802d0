"""Faults of a second loss: its divisor, its weight, and the layers that it shares with the first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch, StepSpec

from .registry import fault


@fault("two-predictions", "second_loss_scaled")
class SecondLossByFirstTokens(PlainSession):
    """Divides the second loss by the number of tokens of the first."""

    def second_tokens(self, batch: Batch) -> float:
        return self.tokens(batch)


@fault("ddp-predictions", "second_loss_of_replicas")
class SecondLossByTokensOfReplica(PlainSession):
    """Divides the second loss by its tokens of one replica, and averages over replicas."""

    def second_tokens(self, batch: Batch) -> float:
        return float(batch.second_tokens(self.spec.counts, self.spec.second_target) * self.spec.replicas)


@fault("two-predictions", "second_loss_of_microbatches")
class SecondLossByTokensOfMicrobatch(PlainSession):
    """Divides the second loss by its tokens of the micro-batch, and averages over micro-batches."""

    def second_weight(self, batch: Batch, chunk: Batch) -> float:
        if not self.spec.second_target or self.spec.reduction != "tokens":
            return super().second_weight(batch, chunk)
        tokens = chunk.second_tokens(self.spec.counts, self.spec.second_target)
        return 1.0 / (tokens * self.spec.microbatches * self.spec.replicas)


@fault("mean-of-predictions", "second_loss_scaled")
class SecondLossNotDivided(PlainSession):
    """Does not divide the second loss by the number of micro-batches."""

    def second_weight(self, batch: Batch, chunk: Batch) -> float:
        return super().second_weight(batch, chunk) * self.spec.microbatches


@fault("ddp-predictions", "second_loss_missing")
class SecondLossDropped(PlainSession):
    """Drops the second loss."""

    def second_weight(self, batch: Batch, chunk: Batch) -> float:
        return 0.0


class _OfSecondLoss(PlainSession):
    """Changes the forward of the module with the second loss."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        super().__init__(modules, spec)
        for module in modules.values():
            for inner in module.modules():
                if hasattr(inner, "second_scale"):
                    vars(inner)["forward"] = partial(self.predicted, type(inner).forward, inner)

    def predicted(self, forward: Any, module: nn.Module, x: Tensor, *given: Any) -> Tensor:
        """Return what the module returns; given are the next tokens, the targets, the embedding and the head."""
        found: Tensor = forward(module, x, *given)
        return found


@fault("two-predictions", "second_loss_missing")
class HeadWithoutSecondLoss(_OfSecondLoss):
    """Uses the head of the model in the second loss outside the graph, so that its gradient there is lost."""

    def predicted(self, forward: Any, module: nn.Module, x: Tensor, *given: Any) -> Tensor:
        *others, head = given
        return super().predicted(forward, module, x, *others, lambda hidden: F.linear(hidden, head.weight.detach()))


@fault("two-predictions", "second_loss_missing")
class SecondLossStopsAtItsInput(_OfSecondLoss):
    """Sends no gradient of the second loss back to the stages before it."""

    def predicted(self, forward: Any, module: nn.Module, x: Tensor, *given: Any) -> Tensor:
        return x + (attached := super().predicted(forward, module, x.detach(), *given)) - attached.detach()


@fault("two-predictions", "uses_missing")
class EmbeddingOfSecondLossAlone(PlainSession):
    """Adds the gradient of the copied embedding to nothing, as if it were a weight of its own."""

    def add_tied(self) -> None:
        if not self.spec.second_target:
            super().add_tied()


@fault("two-predictions vocabulary")
class SecondLossOfOwnWords(PlainSession):
    """Normalizes the second loss by the scores of one tensor rank's words."""

    of_second = False

    def second_loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        self.of_second = True
        found = super().second_loss_of(output, target)
        self.of_second = False
        return found

    def total_of(self, value: Tensor) -> Tensor:
        return value if self.of_second else super().total_of(value)


@fault("two-predictions column-row", "second_loss_scaled")
class SecondLossOverTensorRanks(PlainSession):
    """Sums over tensor ranks the gradients of the layer before the second loss, which each rank has whole."""

    def over_tensor_ranks(self, name: str, grad: Tensor) -> Tensor:
        return self.sum(grad) if ".second.joined." in name else super().over_tensor_ranks(name, grad)
