"""Loops of data-parallel trainers, around torch's own DistributedDataParallel: the whole model in each process.

:class:`Trainer` is the mended version: what a loss counts, when gradients are synchronised and when they are cleared.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from gradconform.runtime import Batch, ModuleSession, StepSpec, scale_auxiliary

from .rebuilt import StepTarget

_CLAIMS = {
    "layout": "two-replicas four-replicas",
    "data_parallel": "ddp",
    "layers": "plain checkpoint dropout",
    "tensor_parallel": "whole-layers",
    "precision": "unmixed",
    "compiled": "eager",
    "steps": "one-step accumulated zeroed evaluated evaluated-first clipped",
}


class _Whole(nn.Module):
    """All stages, one behind the other."""

    def __init__(self, stages: Mapping[int, nn.Module]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stage for _, stage in sorted(stages.items()))

    def forward(self, x: Tensor, kwargs: Mapping[str, Tensor]) -> Tensor:
        for stage in self.stages:
            x = stage(x, **kwargs)
        return x


class Trainer(ModuleSession):
    """Adds micro-batches up without synchronisation, and synchronises behind the last; DDP takes the mean."""

    def __init__(self, modules: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Wrap the whole model."""
        super().__init__(modules, spec)
        self.model = self.wrapped(_Whole(modules))

    def wrapped(self, model: nn.Module) -> DistributedDataParallel:
        """Return the model with what keeps replicas together."""
        return DistributedDataParallel(model)

    def tokens(self, batch: Batch) -> float:
        """Return the number of tokens of all replicas."""
        counted = torch.tensor(batch.tokens(self.spec.counts), dtype=torch.float64)
        dist.all_reduce(counted)
        return float(counted)

    def weight(self, batch: Batch, chunk: Batch) -> float:
        """Return what the loss of a micro-batch counts on this replica: DDP divides by the number of replicas."""
        del chunk
        replicas = self.spec.replicas
        if self.spec.reduction == "tokens":
            return replicas / self.tokens(batch)
        return 1.0 / self.spec.microbatches if self.spec.reduction == "mean" else float(replicas)

    def loss(self, chunk: Batch) -> Tensor:
        """Run one micro-batch forward."""
        return self.spec.loss(self.model(chunk.x, chunk.kwargs), chunk.target)

    def step(self, batch: Batch) -> list[Tensor]:
        """Run all micro-batches forward and back."""
        chunks = list(batch.split())
        return [self.microbatch(batch, chunk, last=chunk is chunks[-1]) for chunk in chunks]

    def microbatch(self, batch: Batch, chunk: Batch, *, last: bool) -> Tensor:
        """Run one micro-batch forward and back."""
        weight = self.weight(batch, chunk)
        scale_auxiliary(self.modules.values(), weight)
        with nullcontext() if last else self.model.no_sync():
            loss = self.loss(chunk)
            self.backward(loss * weight)
        return loss.detach()

    def backward(self, loss: Tensor) -> None:
        """Run the backward of a loss that is scaled."""
        loss.backward()

    def evaluate(self, batch: Batch) -> list[Tensor]:
        """Run all micro-batches forward."""
        with torch.no_grad():
            return [self.spec.loss(self.model.module(c.x, c.kwargs), c.target) for c in batch.split()]

    def clip(self, max_norm: float) -> float:
        """Clip by the norm of the whole model, which each process has."""
        return float(clip_grad_norm_(self.params().values(), max_norm))


class MeanOfMeans(Trainer):
    """transformers-34191: the model takes the mean over each micro-batch, and the loop their mean."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        """Return one over the tokens of the micro-batch, and over the number of micro-batches."""
        if self.spec.reduction != "tokens":
            return super().weight(batch, chunk)
        return 1.0 / int(self.spec.counts(chunk.target).sum()) / self.spec.microbatches


class DividedTwice(Trainer):
    """transformers-40052: the loss is divided by the loop, and by what runs the backward for it once more."""

    def backward(self, loss: Tensor) -> None:
        """Divide again, as a wrapper does that knows of accumulation."""
        super().backward(loss / self.spec.microbatches)


class NeverDivided(Trainer):
    """insightface-2258: the loss is not divided by the number of micro-batches."""

    def weight(self, batch: Batch, chunk: Batch) -> float:
        """Return 1 where it is to be a mean."""
        return 1.0 if self.spec.reduction == "mean" else super().weight(batch, chunk)


class BySentences(Trainer):
    """OpenNMT-py-526: what is to be divided by tokens is divided by sentences."""

    def tokens(self, batch: Batch) -> float:
        """Return the number of rows of all replicas."""
        rows = torch.tensor(float(len(batch.x)), dtype=torch.float64)
        dist.all_reduce(rows)
        return float(rows)


class ClearedInLoop(Trainer):
    """RAE-67: ``zero_grad`` stands in the loop over micro-batches."""

    def microbatch(self, batch: Batch, chunk: Batch, *, last: bool) -> Tensor:
        """Clear gradients, then run one micro-batch."""
        self.zero_grad()
        return super().microbatch(batch, chunk, last=last)


class SyncOfBackwardAlone(Trainer):
    """build-nanogpt-30: the flag that DDP looks at is set behind the forward of each micro-batch."""

    def microbatch(self, batch: Batch, chunk: Batch, *, last: bool) -> Tensor:
        """Run the forward as the flag was left, and set it for the backward."""
        weight = self.weight(batch, chunk)
        scale_auxiliary(self.modules.values(), weight)
        loss = self.loss(chunk)
        self.model.require_backward_grad_sync = last
        self.backward(loss * weight)
        return loss.detach()


class SyncOfBoth(Trainer):
    """build-nanogpt-30, mended: it is set before the forward."""

    def microbatch(self, batch: Batch, chunk: Batch, *, last: bool) -> Tensor:
        """Set the flag, then run the micro-batch."""
        weight = self.weight(batch, chunk)
        scale_auxiliary(self.modules.values(), weight)
        self.model.require_backward_grad_sync = last
        loss = self.loss(chunk)
        self.backward(loss * weight)
        return loss.detach()


class GroupsOfOne(Trainer):
    """verl-7493: shards of size one make the group that gradients are synchronised in a group of one rank."""

    def wrapped(self, model: nn.Module) -> DistributedDataParallel:
        """Synchronise each replica with itself."""
        groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        return DistributedDataParallel(model, process_group=groups[dist.get_rank()])


class AccumulatesApart(Trainer):
    """DeepSpeed-7985, mended: an accumulator on each rank takes each micro-batch, and is reduced behind the last."""

    def step(self, batch: Batch) -> list[Tensor]:
        """Run all micro-batches; what they give is in the accumulator in the meantime."""
        before = {p: p.grad for _, p in self.named("named_parameters")}
        self.sums: dict[nn.Parameter, Tensor] = {}
        losses = super().step(batch)
        for parameter, grad in before.items():
            total = self.sums.get(parameter)
            parameter.grad = total if grad is None else grad if total is None else grad + total
        return losses

    def microbatch(self, batch: Batch, chunk: Batch, *, last: bool) -> Tensor:
        """Run one micro-batch without DDP's synchronisation."""
        self.zero_grad()
        loss = super().microbatch(batch, chunk, last=False)
        self.epilogue(last=last)
        return loss

    def epilogue(self, *, last: bool) -> None:
        """Take what came, then reduce at the boundary."""
        self.take()
        if last:
            self.reduce()

    def take(self) -> None:
        """Add what the micro-batch gave."""
        for _, p in self.named("named_parameters"):
            if p.grad is not None:
                self.sums[p] = self.sums[p] + p.grad if p in self.sums else p.grad

    def reduce(self) -> None:
        """Take the mean over replicas."""
        for _, p in self.named("named_parameters"):
            if p.requires_grad:
                total = self.sums.setdefault(p, torch.zeros_like(p))
                dist.all_reduce(total)
                total /= self.spec.replicas


class ReducedBeforeTaken(AccumulatesApart):
    """DeepSpeed-7985: the accumulator is reduced before it has taken the micro-batch at the boundary."""

    def epilogue(self, *, last: bool) -> None:
        """Reduce at the boundary, then take."""
        if last:
            self.reduce()
        self.take()


class LossScaled(Trainer):
    """DeepSpeed-7839, mended: a loss is scaled, and gradients are by as much less behind the step."""

    scale = 65536.0
    scales_loss = True

    def step(self, batch: Batch) -> list[Tensor]:
        """Run the step on scaled losses, and take the scale off."""
        before = {p: p.grad for _, p in self.named("named_parameters")}
        self.zero_grad()
        losses = super().step(batch)
        for parameter, grad in before.items():
            if parameter.grad is not None:
                parameter.grad /= self.scale
                if grad is not None:
                    parameter.grad += grad
        return losses

    def backward(self, loss: Tensor) -> None:
        """Run the backward of the scaled loss."""
        if self.scales_loss:
            scale_auxiliary(self.modules.values(), self.scale)
        super().backward(loss * self.scale if self.scales_loss else loss)


class ScaleTakenOffAlone(LossScaled):
    """DeepSpeed-7839: the loss is never scaled, and the optimizer takes the scale off."""

    scales_loss = False


trainer = StepTarget(Trainer, **_CLAIMS)
mean_of_means = StepTarget(MeanOfMeans, **_CLAIMS)
divided_twice = StepTarget(DividedTwice, **_CLAIMS)
never_divided = StepTarget(NeverDivided, **_CLAIMS)
by_sentences = StepTarget(BySentences, **_CLAIMS)
cleared_in_loop = StepTarget(ClearedInLoop, **_CLAIMS)
sync_of_backward_alone = StepTarget(SyncOfBackwardAlone, **_CLAIMS)
sync_of_both = StepTarget(SyncOfBoth, **_CLAIMS)
groups_of_one = StepTarget(GroupsOfOne, **_CLAIMS)
accumulates_apart = StepTarget(AccumulatesApart, **_CLAIMS)
reduced_before_taken = StepTarget(ReducedBeforeTaken, **_CLAIMS)
loss_scaled = StepTarget(LossScaled, **_CLAIMS)
scale_taken_off_alone = StepTarget(ScaleTakenOffAlone, **_CLAIMS)
