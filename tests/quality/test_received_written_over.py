"""A layer of one's own that writes its gradient into the memory of the one that it receives is named."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform import check_stage_backward
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages import StageCase
from gradconform.reference.faults.alterations import with_session
from gradconform.target.functions import FunctionsSession
from gradconform.target.layer_swap import swap

#: Without a split: this target runs such a layer again in W, on what I has left.
CHECKS = ("stage.*.full.gradients",)


class _InPlace(torch.autograd.Function):
    """A layer whose backward writes into the memory of the gradient that it receives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any) -> Tensor:
        ctx.save_for_backward(x)
        ctx.layer = layer
        found: Tensor = layer(x)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            (found,) = torch.autograd.grad([ctx.layer(again)], [again], list(grads))
        return grads[0].copy_(found), None


class Residual(nn.Module):
    """A linear layer, and another one that is added to what it reads."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.linear, self.layer = nn.Linear(4, 4), layer

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.linear(x)
        found: Tensor = hidden + self.layer(hidden)
        return found


LAYERS = {"Tanh": nn.Tanh(), "NativeLayerNorm": nn.LayerNorm(4, elementwise_affine=False), "Softmax": nn.Softmax(-1)}


@pytest.mark.parametrize("operation", LAYERS)
def test_a_gradient_written_into_the_received_one_is_named_with_its_operation(operation: str) -> None:
    kind: type[nn.Module] = type(LAYERS[operation])

    class Own(kind):  # type: ignore[misc, valid-type] # a layer of the same kind
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = _InPlace.apply(x, super().forward)  # type: ignore[no-untyped-call] # torch's
            return found

    class Session(FunctionsSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            swap(self._stage, kind, Own)

    case = StageCase("residual", "a residual layer", lambda: Residual(LAYERS[operation]), (Normal((6, 4)),))
    report = check_stage_backward(with_session(Session), stage=case, checks=CHECKS)
    assert report.failures
    cause = f"{operation} writes its gradient into the memory of the one that it receives"
    assert all(cause in result.message for result in report.failures), [result.message for result in report.failures]
