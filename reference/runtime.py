"""A plain runtime, the proof that every composition of a training step can be met.

Micro-batches go through the stages one after the other, and back. Ranks pass outputs and gradients on by blocking
transfers, in one order that is the same for all. The overlap of a schedule is missing: no number depends on it.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradconform.runtime import Batch, Kept, Shard, StepSpec, balance_experts, scale_auxiliary, scale_second

from .context_parallel import ContextSession

#: The most dimensions of a tensor passed between stages.
_DIMENSIONS = 3
#: The dtype of stages in mixed precision and under autocast.
LOWER = torch.bfloat16
#: The dtypes of tensors passed between stages.
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class PlainRuntime:
    """A runtime that uses stages unchanged, and sums gradients over replicas by explicit transfers."""

    name = "reference-runtime"
    #: Nothing is withheld.
    claims: Mapping[str, str] = {}

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> PlainSession:
        """Return the session of this rank."""
        return PlainSession(stages, spec)


class PlainSession(ContextSession):
    """One rank. Each method below does one step of training, so that a fault overrides one of them."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Store the stages; accumulated gradients are stored separately from a step's own."""
        super().__init__(modules, spec)
        self.owner = {stage: rank for rank, stages in enumerate(spec.placement) for stage in stages}
        #: The number of steps so far.
        self.steps = 0
        #: The gradients that are not reduced yet.
        self.shares: dict[nn.Parameter, Tensor] = {}
        #: The module that runs in place of each stage: in mixed precision a copy of it in bfloat16.
        self.running = {index: self.running_of(module) for index, module in self.modules.items()}

    def rank_of(self, stage: int) -> int:
        """Return the rank of a stage of this replica and this tensor rank."""
        return self.ranks(self.owner[stage])[self.spec.replica]

    # The weights of losses.

    def tokens(self, batch: Batch) -> float:
        """Return the number of tokens of the whole batch, that of all replicas."""
        return self.of_whole_batch(batch.tokens(self.spec.counts))

    def positions(self, batch: Batch) -> float:
        """Return the number of tokens of the whole batch, counted in the loss or not."""
        return self.of_whole_batch(batch.positions())

    def of_whole_batch(self, number: int) -> float:
        """Return the sum of a replica's number over all replicas."""
        counted = torch.tensor(number, dtype=torch.float64, device=self.spec.device)
        dist.all_reduce(counted)
        return float(counted) / len(self.spec.placement) / self.spec.tensor_ranks

    def weight(self, batch: Batch, chunk: Batch) -> float:
        """Return the weight of the loss of a micro-batch of a batch."""
        del chunk
        if self.spec.reduction == "tokens":
            return 1.0 / self.tokens(batch)
        batches = self.spec.replicas if self.spec.context == "whole" else 1
        return 1.0 / (self.spec.microbatches * batches) if self.spec.reduction == "mean" else 1.0

    def auxiliary_weight(self, batch: Batch, chunk: Batch) -> float:
        """Return the weight of the auxiliary losses of a micro-batch."""
        return 1.0 / self.positions(batch) if self.spec.reduction == "tokens" else self.weight(batch, chunk)

    def second_tokens(self, batch: Batch) -> float:
        """Return the number of tokens of the whole batch that count in the second loss."""
        return self.of_whole_batch(batch.second_tokens(self.spec.counts, self.spec.second_target))

    def second_weight(self, batch: Batch, chunk: Batch) -> float:
        """Return the weight of the second loss of a micro-batch."""
        if not self.spec.second_target or self.spec.reduction != "tokens":
            return self.weight(batch, chunk)
        return 1.0 / self.second_tokens(batch)

    # The precision of stages.

    def running_of(self, stage: nn.Module) -> nn.Module:
        """Return the module that runs in place of a stage."""
        return copy.deepcopy(stage).to(LOWER) if self.spec.precision == "mixed" else stage

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which stages and the loss run."""
        return torch.autocast(self.spec.device.type, LOWER, enabled=self.spec.precision == "autocast")

    def lower(self, value: Tensor) -> Tensor:
        """Return a stage's input in the precision that it receives."""
        return value.to(LOWER) if self.spec.precision == "mixed" and value.is_floating_point() else value

    def round_parameters(self) -> None:
        """Copy the current parameters and modes to the modules that run in bfloat16."""
        for index, running in self.running.items():
            if running is not (stage := self.modules[index]):
                running.train(stage.training)
                with torch.no_grad():
                    for rounded, parameter in zip(running.parameters(), stage.parameters(), strict=True):
                        rounded.copy_(parameter)

    def take_gradients(self) -> None:
        """Add a micro-batch's gradients to those of the kept parameters, in their dtype."""
        for index, running in self.running.items():
            if running is not (stage := self.modules[index]):
                for rounded, parameter in zip(running.parameters(), stage.parameters(), strict=True):
                    if rounded.grad is not None:
                        grad, rounded.grad = rounded.grad.to(parameter), None
                        parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    # One step.

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Run every micro-batch forward and back, then reduce the gradients, and add them to the existing ones."""
        before = self.kept()
        losses = self.passes(batch)
        self.add(self.shares)
        self.shares = {}
        self.reduce()
        self.add_tied()
        self.add(before)
        return self.reported_losses(losses)

    def accumulate(self, batch: Batch) -> list[Tensor] | None:
        """Run every micro-batch forward and back, and keep the gradients for the next step to reduce."""
        before = self.kept()
        losses = self.passes(batch)
        self.add(self.shares)
        self.shares = self.kept()
        self.add(before)
        return self.reported_losses(losses)

    def passes(self, batch: Batch) -> list[Tensor | None]:
        """Run every micro-batch forward and back; return their losses on a last rank."""
        self.steps += 1
        self.round_parameters()
        return [self.microbatch(batch, chunk, mb) for mb, chunk in enumerate(self.chunks(batch))]

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Run every micro-batch forward."""
        self.round_parameters()
        with torch.no_grad():
            return self.reported_losses([self.forward(chunk)[1] for chunk in batch.split()])

    def reported_losses(self, losses: list[Tensor | None]) -> list[Tensor] | None:
        """Return the losses of whole micro-batches on a last rank, None on others."""
        if not self.spec.is_last:
            return None
        own = [loss.detach() for loss in losses if loss is not None]
        return own if self.spec.context == "whole" else list(map(self.total, own))

    def chunks(self, batch: Batch) -> list[Batch]:
        """Return the micro-batches."""
        return list(batch.split())

    def microbatch(self, batch: Batch, chunk: Batch, mb: int) -> Tensor | None:
        """Run one micro-batch forward and back; return its loss on a last rank."""
        del mb
        weight, auxiliary = self.weight(batch, chunk), self.auxiliary_weight(batch, chunk)
        scale_auxiliary(self.running.values(), auxiliary)
        scale_second(self.running.values(), self.second_weight(batch, chunk))
        passed, loss = self.forward(chunk)
        self.backward(passed, None if loss is None else loss * weight)
        self.take_gradients()
        return loss

    def forward(self, chunk: Batch) -> tuple[dict[int, tuple[Tensor, Tensor]], Tensor | None]:
        """Return each stage's input and output on this rank, and the loss on a last rank."""
        passed: dict[int, tuple[Tensor, Tensor]] = {}
        value, loss = chunk.x, None
        for stage in range(self.spec.stages):
            if stage not in self.modules:
                continue
            if stage:
                value = self.leaf(self.received(stage - 1, value), stage)
            with self.autocast():
                output = self.running[stage](self.lower(value), **{k: self.lower(v) for k, v in chunk.kwargs.items()})
                loss = self.loss_of(output, chunk.target) if stage == self.spec.stages - 1 else None
            passed[stage] = value, output
            if loss is None:
                self.send(output.detach(), stage + 1)
            value = output
        return passed, loss

    def leaf(self, value: Tensor, stage: int) -> Tensor:
        """Return a stage's input as a new tensor, from the previous stage's output."""
        del stage
        return value.detach().requires_grad_(torch.is_grad_enabled())

    def backward(self, passed: dict[int, tuple[Tensor, Tensor]], loss: Tensor | None) -> None:
        """Run the stages of this rank backward, each from the gradient of the next one."""
        handed: Tensor | None = None
        for stage in reversed(range(self.spec.stages)):
            if stage not in self.modules:
                continue
            value, output = passed[stage]
            if loss is not None and stage == self.spec.stages - 1:
                torch.autograd.backward([loss])
            else:
                grad = self.received(stage + 1, handed)
                if output.requires_grad:
                    torch.autograd.backward([output], [grad])
            if stage:
                handed = value.grad if value.grad is not None else torch.zeros_like(value)
                self.send(handed, stage - 1)

    def send(self, value: Tensor, stage: int) -> None:
        """Send a tensor to another stage, unless that is on this rank: its dtype and shape first."""
        if self.owner[stage] == self.spec.pipeline_rank:
            return
        self.spec.note(f"sending to stage {stage}")
        form = [_DTYPES.index(value.dtype), *value.shape, *[0] * (_DIMENSIONS - value.dim())]
        dist.send(torch.tensor(form), self.rank_of(stage))
        dist.send(value.contiguous(), self.rank_of(stage))

    def received(self, stage: int, here: Tensor | None) -> Tensor:
        """Return the tensor from another stage; ``here`` is its output if it is on this rank."""
        if self.owner[stage] == self.spec.pipeline_rank and here is not None:
            return here
        self.spec.note(f"receiving from stage {stage}")
        form = torch.zeros(1 + _DIMENSIONS, dtype=torch.int64)
        dist.recv(form, self.rank_of(stage))
        dtype, *shape = form.tolist()
        value = torch.empty([size for size in shape if size], dtype=_DTYPES[dtype])
        dist.recv(value, self.rank_of(stage))
        return value.to(self.spec.device)

    # The handling of gradients.

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that have a gradient, by full name, each once."""
        found: dict[nn.Parameter, str] = {}
        for name, parameter in self.named("named_parameters"):
            if parameter.grad is not None:
                found.setdefault(parameter, name)
        return [(name, parameter) for parameter, name in found.items()]

    def kept(self) -> dict[nn.Parameter, Tensor]:
        """Return the gradients of earlier steps, and remove them."""
        before = {}
        for _, parameter in self.trained():
            if parameter.grad is not None:
                before[parameter] = parameter.grad
                parameter.grad = None
        return before

    def add(self, before: Mapping[nn.Parameter, Tensor]) -> None:
        """Add the gradients of earlier steps."""
        for parameter, grad in before.items():
            parameter.grad = grad if parameter.grad is None else parameter.grad + grad

    def reduce(self) -> None:
        """Sum a step's gradients over replicas, and over tensor ranks that each received a part of a layer's input."""
        self.complete()
        for name, parameter in sorted(self.trained(), key=lambda one: one[0]):
            self.spec.note(f"reducing the gradient of {name}")
            if parameter.grad is not None:
                grad = self.over_tensor_ranks(name, parameter.grad)
                parameter.grad = self.of_experts(name, grad) if name in self.divided else self.over_replicas(grad)

    def complete(self) -> None:
        """Give a parameter that only other replicas used a gradient of zeros."""
        if self.spec.replicas == 1:
            return
        named = sorted(self.named("named_parameters"), key=lambda one: one[0])
        used = torch.tensor([one.grad is not None for _, one in named], dtype=torch.int64, device=self.spec.device)
        for (_, parameter), replicas in zip(named, torch.stack(self.of_replicas(used)).sum(0).tolist(), strict=True):
            if replicas and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def over_replicas(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over replicas: each sends its own to all others."""
        if self.spec.replicas == 1:
            return value
        total = torch.zeros_like(value)
        for shared in self.of_replicas(value):
            total += shared
        return total

    def add_tied(self) -> None:
        """Add the gradients of one weight that is on two ranks."""
        if not self.spec.tied:
            return
        named = dict(self.named("named_parameters"))
        stages = [int(name.partition(".")[0]) for name in self.spec.tied]
        if self.owner[stages[0]] == self.owner[stages[1]]:
            return
        for name, stage, other in zip(self.spec.tied, stages, reversed(stages), strict=True):
            if stage in self.modules and (grad := named[name].grad) is not None:
                theirs = torch.empty_like(grad)
                order = (self._sent, self._taken) if stage < other else (self._taken, self._sent)
                for move in order:
                    move(grad, theirs, other)
                named[name].grad = grad + theirs

    def _sent(self, own: Tensor, theirs: Tensor, stage: int) -> None:
        del theirs
        dist.send(own.contiguous(), self.rank_of(stage))

    def _taken(self, own: Tensor, theirs: Tensor, stage: int) -> None:
        del own
        dist.recv(theirs, self.rank_of(stage))

    # The work of an optimizer.

    def counted(self) -> list[tuple[str, nn.Parameter]]:
        """Return the parameters that count in the norm on this rank: a tied weight only on its first rank."""
        return [(name, parameter) for name, parameter in self.trained() if name not in self.spec.tied[1:]]

    def squares(self) -> float:
        """Return the sum of squares of this rank's gradients, with its share of those that other ranks hold too."""
        return sum(
            float(one.grad.double().square().sum()) / self.holders(name)
            for name, one in self.counted()
            if one.grad is not None
        )

    def norm(self) -> float:
        """Return the norm of all gradients of the whole model."""
        square = torch.tensor(self.squares(), dtype=torch.float64)
        dist.all_reduce(square)
        return math.sqrt(float(square))

    def factor(self, max_norm: float, norm: float) -> float:
        """Return the factor that clips gradients."""
        return min(1.0, max_norm / (norm + 1e-6))

    def clip(self, max_norm: float) -> float:
        """Return the norm of the gradients, and clip them by it."""
        norm = self.norm()
        for _, parameter in self.trained():
            if parameter.grad is not None:
                parameter.grad = parameter.grad * self.factor(max_norm, norm)
        return norm

    def param_grads(self) -> dict[str, Kept]:
        """Return gradients: whole, or for sharded replicas the rows of each."""
        return {
            name: self.part(name, one.grad if name in self.divided else self.own(one.grad))
            for name, one in self.named("named_parameters")
        }

    def update(self, lr: float) -> None:
        """Make a step of SGD, and update the routers' biases by the tokens of all replicas."""
        super().update(lr)
        balance_experts(self.modules.values(), self.total)

    def own(self, grad: Tensor | None) -> Kept:
        """Return this replica's part of a gradient."""
        if grad is None or not self.spec.data_parallel.startswith(("fsdp", "hsdp")):
            return grad
        rows = -(-len(grad) // self.spec.replicas)
        start = min(rows * self.spec.replica, len(grad))
        return Shard(grad[start : start + rows], start, len(grad))


def idea_of(session: type[PlainSession]) -> tuple[str, str]:
    """Return the name of a session that differs from the plain one, and the first line of its docstring."""
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", session.__name__).lower()
    return name, (session.__doc__ or "").strip().splitlines()[0].rstrip(".")
