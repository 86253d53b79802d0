"""Right variants of experts and of unused parameters, each with one difference from the plain runtime."""

from __future__ import annotations

import math
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradconform.reference.runtime import PlainSession
from gradconform.reference.tensor_parallel import handed_round, region
from gradconform.runtime import ModuleSession, balance_experts

from .step_registry import right

_DIVIDED = ("experts", "idle-experts", "dropped-tokens")


@right(*_DIVIDED)
class ExpertsGathered(PlainSession):
    """Gathers all experts on each replica, and sums their gradients over replicas, as ``fully_shard`` does."""

    def over_replica_experts(self, module: nn.Module, tokens: Tensor, counts: Tensor) -> Tensor:
        gathered: Any = SimpleNamespace(**{name: self.all_of(one) for name, one in module.named_parameters()})
        found: Tensor = type(module).forward(gathered, tokens, counts)
        return found

    def all_of(self, parameter: Tensor) -> Tensor:
        """Return the experts of all replicas."""
        own = self.experts_of(self.spec.replica, len(parameter) * self.spec.replicas)
        return region(
            parameter,
            lambda part: torch.cat(self.of_replicas(part)),
            lambda grad: self.over_replicas(grad)[own].clone(),
        )


@right(*_DIVIDED)
class TokensGathered(PlainSession):
    """Gathers the tokens of all replicas, and sums the outputs of each rank's experts over replicas."""

    def over_replica_experts(self, module: nn.Module, tokens: Tensor, counts: Tensor) -> Tensor:
        every = torch.stack(self.of_replicas(counts))
        lengths = every.sum(1).tolist()
        own = slice(sum(lengths[: self.spec.replica]), sum(lengths[: self.spec.replica + 1]))
        experts = self.experts_of(self.spec.replica, len(counts))
        together = partial(self.together_of, lengths=lengths)
        arrived = region(tokens, together, lambda grad: self.over_replicas(grad)[own].clone())
        of_expert = torch.arange(len(counts)).repeat(len(every)).repeat_interleave(every.flatten())
        order = of_expert.argsort(stable=True)
        order = order[(of_expert[order] >= experts.start) & (of_expert[order] < experts.stop)]
        outputs = type(module).forward(module, arrived[order], every[:, experts].sum(0))
        placed = torch.zeros_like(arrived).index_copy(0, order, outputs)
        return region(placed, lambda value: self.over_replicas(value)[own].clone(), together)

    def together_of(self, value: Tensor, lengths: list[int]) -> Tensor:
        """Return the rows of all replicas."""
        shapes = [(length, *value.shape[1:]) for length in lengths]
        return torch.cat(handed_round(value, self.ranks(self.spec.pipeline_rank), self.spec.replica, shapes))


@right("experts-over-tensor-ranks", "idle-expert experts-over-tensor-ranks")
class OutputsGathered(PlainSession):
    """Concatenates the outputs of all tensor ranks' experts instead of a sum with zeros."""

    def over_tensor_experts(self, module: nn.Module, tokens: Tensor, counts: Tensor) -> Tensor:
        parts = [self.part_of(len(counts), rank) for rank in range(self.spec.tensor_ranks)]
        lengths = [int(counts[part].sum()) for part in parts]
        start = sum(lengths[: self.spec.tensor_rank])
        own = slice(start, start + lengths[self.spec.tensor_rank])
        outputs = type(module).forward(module, self.entered(tokens)[own], counts[self.part_of(len(counts))])
        shapes = [(length, tokens.shape[1]) for length in lengths]
        return region(outputs, lambda value: torch.cat(self.each(value, shapes)), lambda grad: grad[own].clone())


@right("experts", "whole-experts", "dropped-tokens")
class BiasBeforeParameters(PlainSession):
    """Updates the biases of routers before the step of SGD."""

    def update(self, lr: float) -> None:
        balance_experts(self.modules.values(), self.total)
        ModuleSession.update(self, lr)


@right("experts", "whole-experts", "dropped-tokens", "experts-over-tensor-ranks")
class NormOfExpertsApart(PlainSession):
    """Computes the norm of experts and of all other layers separately, and then that of both."""

    def norm(self) -> float:
        both = [torch.zeros((), dtype=torch.float64) for _ in range(2)]
        for name, one in self.counted():
            if one.grad is not None:
                both[".experts." in name] += one.grad.double().square().sum() / self.holders(name)
        for square in both:
            dist.all_reduce(square)
        return math.hypot(*(math.sqrt(float(square)) for square in both))


@right("used-on-one-replica", "used-in-one-microbatch", "used-in-first-step", "never-used two-replicas")
class ZerosForUnused(PlainSession):
    """Reduces a gradient of zeros for each parameter that no replica used."""

    def complete(self) -> None:
        for _, parameter in self.named("named_parameters"):
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        super().complete()


@right("used-on-one-replica", "used-in-one-microbatch", "experts", "idle-experts")
class ReducedByUse(PlainSession):
    """Sums the gradients of the replicas that used a parameter, and sends the sum to the others."""

    def complete(self) -> None:
        """Do nothing: :meth:`reduce` knows who used what."""

    def reduce(self) -> None:
        named = sorted(self.named("named_parameters"), key=lambda one: one[0])
        used = torch.stack(self.of_replicas(torch.tensor([one.grad is not None for _, one in named]).long()))
        for (name, parameter), users in zip(named, used.T.tolist(), strict=True):
            if name not in self.divided and any(users):
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                each = self.of_replicas(self.over_tensor_ranks(name, grad))
                parameter.grad = torch.stack([one for one, uses in zip(each, users, strict=True) if uses]).sum(0)
