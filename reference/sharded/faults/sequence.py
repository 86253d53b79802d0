"""Faults of a sequence that is split over ranks."""

from __future__ import annotations

from torch import Tensor

from gradconform.reference.sharded.context import ContextAttention, ShardedAttention

from .fault import fault


@fault("gradients", "not_summed_over")
class ContextGradientsNotSummed(ContextAttention):
    """Parameter gradients are summed over no context rank."""

    def finish(self, module: ShardedAttention) -> None:
        return


@fault("gradients", "divided_by_size_of")
class ContextGradientsAveraged(ContextAttention):
    """Parameter gradients are averaged over the context ranks."""

    def finish(self, module: ShardedAttention) -> None:
        super().finish(module)
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= module.group.size()


class _NotPassedBack(ShardedAttention):
    def passed(self, pair: Tensor) -> Tensor:
        return super().passed(pair.detach())


@fault("input-gradients", "not_summed_over")
class RingWithoutBackward(ContextAttention):
    """Keys and values of other ranks pass no gradient back."""

    module = _NotPassedBack
