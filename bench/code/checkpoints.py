"""Stages that are run again in their backward, by torch's own checkpoint and by one of a project's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradconform.adapter import Session, StageSpec
from gradconform.reference.autograd import AutogradSession

from .rebuilt import StageTarget

_WITHHELD = (
    "split mixed weight_before_input changed_in_flight recomputes parameter_input nontensor_input nested_output "
    "buffers nongrad_output autocast"
)


class _Again(nn.Module):
    """Calls a stage by way of a checkpoint; its parameters are the stage's own."""

    def __init__(self, stage: nn.Module, around: Callable[..., Any]) -> None:
        super().__init__()
        self.stage, self.around = stage, around

    def forward(self, *args: Any) -> Any:
        return self.around(self.stage, *args)


class _Session(AutogradSession):
    """Plain autograd on a stage that is run again."""

    def __init__(self, stage: nn.Module, spec: StageSpec, around: Callable[..., Any]) -> None:
        super().__init__(stage, spec)
        self._stage = _Again(stage, around)


def _checkpointed(name: str, around: Callable[..., Any]) -> StageTarget:
    def opened(stage: nn.Module, spec: StageSpec) -> Session:
        return _Session(stage, spec, around)

    return StageTarget(name, opened, _WITHHELD)


def _not_reentrant(stage: nn.Module, *args: Any) -> Any:
    return checkpoint(stage, *args, use_reentrant=False)


def _rng_not_kept(stage: nn.Module, *args: Any) -> Any:
    return checkpoint(stage, *args, use_reentrant=False, preserve_rng_state=False)


class _Own(torch.autograd.Function):
    """guided-diffusion-167: the forward is run again as the generators are then, or as they were."""

    @staticmethod
    def forward(ctx: Any, stage: nn.Module, restores: bool, count: int, *tensors: Tensor) -> Any:  # noqa: FBT001 (apply takes no names)
        ctx.stage, ctx.restores, ctx.count = stage, restores, count
        ctx.state = torch.get_rng_state()
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return stage(*tensors[:count])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        args = [x.detach().requires_grad_(x.requires_grad) for x in tensors[: ctx.count]]
        wanted = [*args, *tensors[ctx.count :]]
        now = torch.get_rng_state()
        if ctx.restores:
            torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            outputs = ctx.stage(*args)
        torch.set_rng_state(now)
        outputs = (outputs,) if isinstance(outputs, Tensor) else outputs
        asked = [x for x in wanted if x.requires_grad]
        pairs = [(o, g) for o, g in zip(outputs, grads, strict=True) if o.requires_grad and g is not None]
        roots, starts = zip(*pairs, strict=True)
        found = iter(torch.autograd.grad(roots, asked, starts, allow_unused=True))
        return (None, None, None, *(next(found) if x.requires_grad else None for x in wanted))


def _own(stage: nn.Module, *args: Any, restores: bool) -> Any:
    parameters = [p for p in stage.parameters() if p.requires_grad]
    return _Own.apply(stage, restores, len(args), *args, *parameters)  # type: ignore[no-untyped-call] # so is torch's


def _own_restoring(stage: nn.Module, *args: Any) -> Any:
    return _own(stage, *args, restores=True)


def _own_forgetting(stage: nn.Module, *args: Any) -> Any:
    return _own(stage, *args, restores=False)


not_reentrant = _checkpointed("not-reentrant", _not_reentrant)
rng_not_kept = _checkpointed("rng-not-kept", _rng_not_kept)
own_restoring = _checkpointed("own-restoring", _own_restoring)
own_forgetting = _checkpointed("own-forgetting", _own_forgetting)
