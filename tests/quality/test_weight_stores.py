"""Layers that leave weight gradients in a store for W, as in zero-bubble engines: the causes of their defects."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from gradconform import Report, StageSpec, check_stage_backward, swap
from gradconform.reference.autograd import AutogradSession
from gradconform.report.sections import sections

KEPT = "W adds nothing to existing gradients of parameters with two or more dimensions"


@dataclass
class Store:
    """What I leaves for W, and which defects the layers have."""

    keeps_first: bool = False
    writes_to_saved: bool = False
    left: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def pop(self) -> None:
        """Add what was left to the weights."""
        for weight, grad in self.left:
            if weight.grad is None:
                weight.grad = grad
            elif not self.keeps_first:
                weight.grad += grad
        self.left.clear()


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, layer: StoringLinear) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        return nn.functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, saved = ctx.saved_tensors
        layer = ctx.layer
        rows = grad.flatten(0, -2)
        weight = saved if layer.store.writes_to_saved else layer.weight
        layer.store.left.append((weight, rows.T @ x.detach().flatten(0, -2)))
        return grad @ saved.detach(), None, rows.sum(0) if ctx.needs_input_grad[2] else None, None


class StoringLinear(nn.Linear):
    """A Linear that leaves the gradient of its weight in the store."""

    store: Store

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
        """Multiply."""
        result: Any = _Stored.apply(input, self.weight, self.bias, self)  # type: ignore[no-untyped-call] # torch's
        return cast("Tensor", result)


class StoringSession(AutogradSession):
    """I is a whole backward, W takes out of the store what it left."""

    def __init__(self, stage: nn.Module, spec: StageSpec, store: Store) -> None:
        super().__init__(stage, spec)
        self._store, self._waiting = store, dict[int, list[tuple[Tensor, Tensor]]]()
        swap(stage, nn.Linear, StoringLinear, store=store)

    def backward_input(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Leave the weights."""
        found = super().backward(mb, output_grads)
        self._waiting[mb], self._store.left = self._store.left, []
        return found

    def backward_weight(self, mb: int) -> None:
        """Add what I left."""
        self._store.left = self._waiting.pop(mb)
        self._store.pop()

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        """Leave nothing."""
        found = super().backward(mb, output_grads)
        self._store.pop()
        return found


def judged(*checks: str, **defects: bool) -> Report:
    claims = {"input_pass_touches_params": True, "hooks": "never", "bias_hooks": "early"}
    adapter = SimpleNamespace(
        name="storing", capabilities=claims, open=lambda stage, spec: StoringSession(stage, spec, Store(**defects))
    )
    return check_stage_backward(adapter, checks=checks)


def likely_causes(report: Report) -> list[str]:
    return [cause.likely for section in sections(report) for cause in section.causes]


def test_a_right_weight_store_passes() -> None:
    checks = ("accumulate.iterations.split-*", "split.gradients.checkpoint", "accumulate.prior.split")
    assert not judged(*checks).failures


def test_a_w_that_adds_nothing_to_an_existing_weight_gradient_is_one_cause() -> None:
    report = judged("accumulate.iterations.split-3", "accumulate.prior.split", "split.gradients.mlp", keeps_first=True)
    assert likely_causes(report) == [KEPT]


def test_a_weight_saved_by_a_checkpoint_is_named_in_a_split_backward() -> None:
    report = judged("split.gradients.checkpoint", writes_to_saved=True)
    said = "never accumulated: only parameters inside a checkpoint get none: added to a detached copy of the parameter"
    assert said in report.failures[0].message


def test_a_cause_that_would_show_at_an_earlier_action_is_rejected() -> None:
    """That matrices get no gradient at all would explain the checkpoint's, and is not so at the first micro-batch."""
    report = judged("split.gradients.checkpoint", keeps_first=True, writes_to_saved=True)
    assert {one["mistake"]["kind"] for result in report for one in result.undone} == {"matrices_kept"}


def test_a_session_that_detaches_a_parameter_argument_gets_the_claim_to_withhold() -> None:
    class Detaching(AutogradSession):
        def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
            return super().forward(mb, tuple(x.detach().requires_grad_(x.requires_grad) for x in args), target)

    adapter = SimpleNamespace(name="detaching", capabilities={"split": False}, open=Detaching)
    (finding, *_) = check_stage_backward(adapter, checks="full.gradients.parameter-input").failures[0].findings
    assert finding["cause"]["kind"] == "argument_detached"
    assert "withholds parameter_input" in finding["cause"]["text"]
