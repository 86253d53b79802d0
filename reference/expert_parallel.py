"""Plain expert parallelism: the experts on each rank, and the exchange of tokens between replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradconform.runtime import Kept, Shard, StepSpec

from .tensor_parallel import TensorSession, handed_round, region


class ExpertSession(TensorSession):
    """One of the ranks that share experts. Each method is one requirement of sharing, for a fault to override."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Store this rank's experts."""
        super().__init__(modules, spec)
        #: The number of experts in each parameter whose experts are divided over replicas.
        self.divided: dict[str, int] = {}
        for name, module in self.own_modules(spec.experts):
            if spec.experts[name] != "whole":
                self._divide(name, module, spec.experts[name])

    def _divide(self, name: str, module: nn.Module, style: str) -> None:
        for which, whole in list(module.named_parameters()):
            if style == "tensor":
                self._keep(name, module, which, 0)
            else:
                self.divided[f"{name}.{which}"] = len(whole)
                part = whole.detach()[self.experts_of(self.spec.replica, len(whole))].clone()
                module.register_parameter(which, nn.Parameter(part, requires_grad=whole.requires_grad))
        forward = self.over_tensor_experts if style == "tensor" else self.over_replica_experts
        vars(module)["forward"] = partial(forward, module)

    def ranks(self, pipeline_rank: int) -> range:
        """Return the ranks that have the same stages and the same part of them, replica by replica."""
        each = self.spec.tensor_ranks
        first = pipeline_rank * self.spec.replicas * each + self.spec.tensor_rank
        return range(first, first + self.spec.replicas * each, each)

    def experts_of(self, replica: int, experts: int) -> slice:
        """Return the experts that a replica has."""
        each = experts // self.spec.replicas
        return slice(each * replica, each * (replica + 1))

    # Layers.

    def over_tensor_experts(self, module: nn.Module, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs of all experts; each tensor rank computes those of its own."""
        own, ends = self.part_of(len(counts)), [0, *counts.cumsum(0).tolist()]
        start, end = ends[own.start], ends[own.stop]
        outputs = type(module).forward(module, self.to_tensor_experts(tokens)[start:end], counts[own])
        around = tokens.new_zeros(start, tokens.shape[1]), tokens.new_zeros(len(tokens) - end, tokens.shape[1])
        return self.all_outputs(torch.cat([around[0], outputs, around[1]]))

    def to_tensor_experts(self, tokens: Tensor) -> Tensor:
        """Return tokens that the experts of all tensor ranks receive."""
        return self.entered(tokens)

    def all_outputs(self, outputs: Tensor) -> Tensor:
        """Return the outputs of the experts of all tensor ranks; this rank's are zero for those of others."""
        return self.summed(outputs)

    def over_replica_experts(self, module: nn.Module, tokens: Tensor, counts: Tensor) -> Tensor:
        """Return the outputs of all experts for this replica's tokens, which go to the ranks of their experts."""
        of_replicas = torch.stack(self.of_replicas(counts))
        slices = [self.experts_of(replica, len(counts)) for replica in range(self.spec.replicas)]
        sent = [int(counts[one].sum()) for one in slices]
        own = of_replicas[:, slices[self.spec.replica]]
        received = own.sum(1).tolist()
        arrived = self.to_experts(tokens, sent, received)
        order = torch.arange(own.shape[1], device=own.device).repeat(len(own)).repeat_interleave(own.flatten())
        order = order.argsort(stable=True)
        outputs = type(module).forward(module, arrived[order], own.sum(0))
        return self.to_replicas(self.in_order_of_arrival(outputs, order), received, sent)

    def in_order_of_arrival(self, outputs: Tensor, order: Tensor) -> Tensor:
        """Return outputs, which are sorted by expert, in the order in which their tokens arrived."""
        return torch.empty_like(outputs).index_copy(0, order, outputs)

    # The exchanges between replicas.

    def of_replicas(self, value: Tensor) -> list[Tensor]:
        """Return the tensors of all replicas, each of this one's shape."""
        ranks = self.ranks(self.spec.pipeline_rank)
        return handed_round(value, ranks, self.spec.replica, [value.shape] * len(ranks))

    def total(self, value: Tensor) -> Tensor:
        """Return the sum over replicas of numbers that are no gradient."""
        return torch.stack(self.of_replicas(value)).sum(0)

    def to_experts(self, tokens: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Return the tokens that all replicas send to this rank's experts; gradients return the same way."""
        return region(tokens, partial(self.exchanged, sent=sent, received=received),
                      partial(self.exchanged, sent=received, received=sent))  # fmt: skip

    def to_replicas(self, outputs: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Return the outputs of this replica's tokens from the experts of all ranks."""
        return self.to_experts(outputs, sent, received)

    def exchanged(self, value: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Return the rows that all replicas send here: ``sent`` rows go to each, ``received`` arrive from each."""
        ranks, own, parts, found = self.ranks(self.spec.pipeline_rank), self.spec.replica, value.split(list(sent)), []
        for giver, rank in enumerate(ranks):
            for taker, other in enumerate(ranks):
                if giver == taker == own:
                    found.append(parts[own])
                elif giver == own and sent[taker]:
                    dist.send(parts[taker].contiguous(), other)
                elif taker == own and received[giver]:
                    part = value.new_empty(received[giver], *value.shape[1:])
                    dist.recv(part, rank)
                    found.append(part)
        return torch.cat(found)

    # The handling of gradients.

    def of_experts(self, name: str, grad: Tensor) -> Tensor:
        """Return a gradient of this rank's experts, which already covers the tokens of all replicas."""
        del name
        return grad

    def holders(self, name: str) -> int:
        """Return how many ranks with the same stages hold the same gradient."""
        return super().holders(name) * (1 if name in self.divided else self.spec.replicas)

    def part(self, name: str, value: Kept) -> Kept:
        """Return a parameter or gradient of this rank as a part of the whole."""
        if value is None or name not in self.divided:
            return super().part(name, value)
        experts = self.divided[name]
        return Shard(value, self.experts_of(self.spec.replica, experts).start, experts)
