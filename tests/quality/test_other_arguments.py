"""A layer of one's own whose backward takes another value for an argument is told by the operation and the argument."""

from __future__ import annotations

from collections.abc import Callable
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

CHECKS = ("stage.*.full.gradients", "stage.*.split.gradients")


class _Backward(torch.autograd.Function):
    """The forward of one layer, and the backward of another."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, right: Callable[[Tensor], Tensor], wrong: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.wrong = wrong
        return right(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_()
            (found,) = torch.autograd.grad([ctx.wrong(again)], [again], list(grads))
        return found, None, None


LAYERS: dict[str, tuple[nn.Module, nn.Module, tuple[int, ...]]] = {
    "gelu_backward takes approximate=none instead of tanh": (nn.GELU("tanh"), nn.GELU("none"), (7, 5)),
    "avg_pool2d_backward takes count_include_pad=False instead of True": (
        nn.AvgPool2d(3, padding=1, count_include_pad=True),
        nn.AvgPool2d(3, padding=1, count_include_pad=False),
        (2, 3, 6, 5),
    ),
    "upsample_bilinear2d_backward takes align_corners=False instead of True": (
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
        nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False),
        (2, 3, 6, 5),
    ),
}


@pytest.mark.parametrize("cause", LAYERS)
def test_an_argument_that_a_backward_leaves_out_is_named(cause: str) -> None:
    right, wrong, shape = LAYERS[cause]
    kind: type[nn.Module] = type(right)

    class Own(kind):  # type: ignore[misc, valid-type] # a layer of the same kind
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = _Backward.apply(x, super().forward, wrong)  # type: ignore[no-untyped-call] # torch's
            return found

    class Session(FunctionsSession):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            swap(self._stage, kind, Own)

    case = StageCase("own", "a layer of ours", lambda: nn.Sequential(nn.Linear(shape[-1], 5), right), (Normal(shape),))
    report = check_stage_backward(with_session(Session), stage=case, checks=CHECKS)
    assert report.failures
    assert all(cause in result.message for result in report.failures), [result.message for result in report.failures]
