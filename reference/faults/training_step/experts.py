"""Faults of experts: how their gradients are reduced, what is sent to them, and how tokens are balanced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradconform.reference.runtime import PlainSession
from gradconform.runtime import Batch, Kept, ModuleSession, Shard, StepSpec, balance_experts

from .registry import each, fault


@fault("experts", "multiplied")
class ExpertsDoubled(PlainSession):
    """Multiplies gradients of experts by the number of replicas."""

    def of_experts(self, name: str, grad: Tensor) -> Tensor:
        return super().of_experts(name, grad) * self.spec.replicas


@fault("experts", "divided")
class ExpertsDividedByReplicas(PlainSession):
    """Divides gradients of experts, which are already means over all replicas' tokens, by the number of replicas."""

    def of_experts(self, name: str, grad: Tensor) -> Tensor:
        return super().of_experts(name, grad) / self.spec.replicas


@fault("experts")
class OtherExpertsAdded(PlainSession):
    """Sums gradients of experts over replicas, although each replica has other experts."""

    def of_experts(self, name: str, grad: Tensor) -> Tensor:
        return self.over_replicas(grad)


@fault("experts")
class ExpertsOfFirstReplica(PlainSession):
    """Copies the gradients of the first replica's experts to all replicas."""

    def of_experts(self, name: str, grad: Tensor) -> Tensor:
        return self.over_replicas(grad if self.spec.replica == 0 else torch.zeros_like(grad))


class _SomeNotReduced(PlainSession):
    """Leaves some parameters out of the reduction."""

    #: What their names have in them.
    left_out = ""

    def reduce(self) -> None:
        left = {name: one.grad for name, one in self.trained() if self.left_out in name}
        super().reduce()
        each(self, left.get)


@fault("whole-experts", "not_reduced")
class WholeExpertsNotReduced(_SomeNotReduced):
    """Leaves experts that every replica has out of the reduction."""

    left_out = ".experts."


@fault("experts", "not_reduced")
class SharedExpertNotReduced(_SomeNotReduced):
    """Leaves the expert that every token gets out of the reduction, as if it were divided too."""

    left_out = ".shared."


@fault("experts", "not_reduced")
class RouterNotReduced(_SomeNotReduced):
    """Leaves the router out of the reduction."""

    left_out = ".router."


@fault("experts")
class TokensSentWithoutGradient(PlainSession):
    """Sends tokens to experts outside the graph, so that no gradient returns through experts."""

    def to_experts(self, tokens: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        return self.exchanged(tokens.detach(), sent, received)

    def to_replicas(self, outputs: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        return super().to_experts(outputs, sent, received)


@fault("experts", "never_accumulated")
class OutputsReturnedWithoutGradient(PlainSession):
    """Returns the outputs of experts outside the graph, so that experts get no gradient."""

    def to_replicas(self, outputs: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        return self.exchanged(outputs.detach(), sent, received)


@fault("experts")
class OwnTokensAlone(PlainSession):
    """Sends back no gradient for outputs of other replicas' tokens."""

    def to_replicas(self, outputs: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        start = sum(sent[: self.spec.replica])
        own = slice(start, start + sent[self.spec.replica])
        kept = torch.zeros(len(outputs), 1, dtype=outputs.dtype, device=outputs.device)
        kept[own] = 1.0
        return super().to_replicas(outputs * kept + outputs.detach() * (1.0 - kept), sent, received)


@fault("experts")
class ReturnedInOrderOfExperts(PlainSession):
    """Returns outputs in the order in which experts computed them."""

    def in_order_of_arrival(self, outputs: Tensor, order: Tensor) -> Tensor:
        return outputs


@fault("idle-experts", "never_accumulated")
class IdleExpertsWithoutGradient(PlainSession):
    """Leaves experts that got no token without a gradient."""

    def reduce(self) -> None:
        super().reduce()
        each(self, lambda name, grad: grad if grad.any() or name not in self.divided else None)


@fault("experts")
class ExpertShardsSwapped(PlainSession):
    """Returns each replica's experts as those of another replica."""

    def part(self, name: str, value: Kept) -> Kept:
        kept = super().part(name, value)
        if isinstance(kept, Shard) and name in self.divided:
            return replace(kept, start=kept.rows - kept.start - kept.rows // self.spec.replicas)
        return kept


class _OfRouters(PlainSession):
    """Changes the forward of each router, which returns tokens, weights and numbers of experts."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        super().__init__(modules, spec)
        for _, router in self.own_modules(f"{name.rpartition('.')[0]}.router" for name in spec.experts):
            vars(router)["forward"] = partial(self.routed, type(router).forward, router)

    def routed(self, forward: Any, router: nn.Module, tokens: Tensor, affinity: Tensor) -> tuple[Tensor, ...]:
        """Return what a router returns."""
        found: tuple[Tensor, ...] = forward(router, tokens, affinity)
        return found


@fault("experts", "only_auxiliary")
class RouterOutsideGraph(_OfRouters):
    """Weighs the outputs of experts by numbers outside the graph."""

    def routed(self, forward: Any, router: nn.Module, tokens: Tensor, affinity: Tensor) -> tuple[Tensor, ...]:
        tokens, weights, chosen = super().routed(forward, router, tokens, affinity)
        return tokens, weights.detach(), chosen


@fault("experts")
class WeightsMadeToAddUp(_OfRouters):
    """Divides the weights of a token's experts by their sum, which the model does not."""

    def routed(self, forward: Any, router: nn.Module, tokens: Tensor, affinity: Tensor) -> tuple[Tensor, ...]:
        tokens, weights, chosen = super().routed(forward, router, tokens, affinity)
        return tokens, weights / weights.sum(-1, keepdim=True), chosen


@fault("experts")
class BiasLeftOut(_OfRouters):
    """Chooses experts without the router's bias."""

    def routed(self, forward: Any, router: nn.Module, tokens: Tensor, affinity: Tensor) -> tuple[Tensor, ...]:
        bias = router.get_buffer("bias")
        return super().routed(forward, router, tokens, affinity - bias)


@fault("dropped-tokens")
class CapacityIgnored(PlainSession):
    """Drops no token."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        super().__init__(modules, spec)
        for module in modules.values():
            for inner in module.modules():
                if hasattr(inner, "dropping"):
                    vars(inner)["dropping"] = False


@fault("experts", "auxiliary_missing")
class BalanceDropped(PlainSession):
    """Drops the loss for balance."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        return 0.0


@fault("experts", "auxiliary_scaled")
class BalanceByOwnTokens(PlainSession):
    """Divides the loss for balance by the tokens of one replica."""

    def positions(self, batch: Batch) -> float:
        return float(batch.positions())


@fault("whole-experts", "auxiliary_scaled")
class BalanceNotDivided(PlainSession):
    """Does not divide the loss for balance by the number of micro-batches."""

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        return super().auxiliary_weight(batch, chunk) * self.spec.microbatches


@fault("experts")
class BiasNotUpdated(PlainSession):
    """Updates no bias of a router."""

    def update(self, lr: float) -> None:
        ModuleSession.update(self, lr)


@fault("experts")
class BiasByOwnTokens(PlainSession):
    """Updates the bias of a router by the tokens of one replica."""

    def update(self, lr: float) -> None:
        ModuleSession.update(self, lr)
        balance_experts(self.modules.values(), lambda counts: counts)


@fault("whole-experts")
class TokensCountedOn(PlainSession):
    """Does not clear a router's counts of tokens when its bias is updated."""

    def update(self, lr: float) -> None:
        counts = {name: value.clone() for name, value in self.named("named_buffers") if name.endswith(".counts")}
        super().update(lr)
        for name, value in self.named("named_buffers"):
            if name in counts:
                value.copy_(counts[name])


@fault("evaluated uneven-routing")
class TokensCountedInEvaluation(PlainSession):
    """Counts the tokens of an evaluation too."""

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        for module in self.modules.values():
            module.train()
        return super().evaluate(batch)


@fault("experts", "norm_leaves_out")
class NormWithoutExperts(PlainSession):
    """Leaves experts out of the norm."""

    def counted(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, one) for name, one in super().counted() if name not in self.divided]


@fault("experts")
class NormOfSomeExperts(PlainSession):
    """Counts experts in the norm as if every replica had the same ones."""

    def holders(self, name: str) -> int:
        return super().holders(name) * (self.spec.replicas if name in self.divided else 1)


@fault("experts", "norm_counts_copies")
class NormCountsOtherLayersAgain(PlainSession):
    """Counts layers without experts in the norm once for each replica."""

    def holders(self, name: str) -> int:
        return self.spec.tensor_ranks


@fault("experts", "not_clipped")
class ExpertsClippedAlone(PlainSession):
    """Clips experts by a norm of their own."""

    def clip(self, max_norm: float) -> float:
        before = {name: one.grad for name, one in self.trained() if name in self.divided}
        squares = [grad.double().square().sum() for grad in before.values() if grad is not None]
        own = self.factor(max_norm, math.sqrt(float(self.over_replicas(torch.stack(squares).sum().view(1)))))
        norm = super().clip(max_norm)
        each(self, lambda name, grad: grad if (kept := before.get(name)) is None else kept * own)
        return norm


@fault("experts-over-tensor-ranks")
class ExpertOutputsNotSummed(PlainSession):
    """Uses the outputs of one tensor rank's experts as those of all."""

    def all_outputs(self, outputs: Tensor) -> Tensor:
        return outputs


@fault("experts-over-tensor-ranks")
class ExpertInputsNotSummed(PlainSession):
    """Sends back the input gradients of one tensor rank's experts."""

    def to_tensor_experts(self, tokens: Tensor) -> Tensor:
        return tokens


@fault("experts-over-tensor-ranks", "norm_of_tensor_ranks")
class NormCountsTensorRanksOfRouter(PlainSession):
    """Counts routers and other layers without a part in each tensor rank once per rank in the norm."""

    def holders(self, name: str) -> int:
        return self.spec.replicas


@fault("experts-over-tensor-ranks", "norm_leaves_out")
class ExpertsTakenForCopies(PlainSession):
    """Counts experts in the norm on the first tensor rank alone, as if all tensor ranks had the same ones."""

    def counted(self) -> list[tuple[str, nn.Parameter]]:
        first = self.spec.tensor_rank == 0
        return [(name, one) for name, one in super().counted() if first or ".experts." not in name]
