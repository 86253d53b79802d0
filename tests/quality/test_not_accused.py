"""Right implementations, written as users write them: the kit says what is so of each, and accuses none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from gradconform import check_stage_backward, swap
from gradconform.adapter import Capabilities, StageSpec
from gradconform.fixtures.inputs import Normal
from gradconform.fixtures.stages.case import StageCase
from gradconform.reference import split
from gradconform.reference.autograd import AutogradSession
from gradconform.report.sentences import verdict
from gradconform.results import Report
from gradconform.trees import map_leaves


class Context:
    """What waits for W, in a form of its own."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        self.groups = groups


def own_context(*args: Any) -> tuple[Any, Context]:
    """Return what I returns, with a context that only its own W reads."""
    grads, groups = split.stage_backward_input(*args)
    return grads, Context(groups)


def of_own_context(weights: Any, context: Context) -> tuple[Any, ...]:
    """Run W of such a context."""
    return split.stage_backward_weight(weights, context.groups)


def returns_nothing(weights: Any, context: Any) -> None:
    """Run W and return nothing, as torch's runtime does not ask for it."""
    split.stage_backward_weight(weights, context)


def returns_its_own(weights: Any, context: Any) -> tuple[Any, ...]:
    """Run W and return what it has added."""
    parameters = list(weights)
    before = [None if weight.grad is None else weight.grad.clone() for weight in parameters]
    after = split.stage_backward_weight(iter(parameters), context)
    return tuple(a if b is None or a is None else a - b for a, b in zip(after, before, strict=True))


def functions(**other: Any) -> SimpleNamespace:
    """Return three functions that are right, ``other`` ones among them."""
    names = ("stage_backward", "stage_backward_input", "stage_backward_weight")
    return SimpleNamespace(**{name: getattr(split, name) for name in names} | other)


def adapter(session: Callable[[nn.Module, StageSpec], object], **claims: Any) -> SimpleNamespace:
    """Return an adapter that opens such sessions."""
    return SimpleNamespace(name="right", capabilities=Capabilities(**claims), open=session)


def judged(target: object, *checks: str, **options: Any) -> Report:
    """Return the report on some checks."""
    return check_stage_backward(target, checks=checks, **options)


def test_a_private_form_of_weight_context_is_not_built_manually() -> None:
    report = judged(
        functions(stage_backward_input=own_context, stage_backward_weight=of_own_context), "grad_tuple.by_hand.*"
    )
    assert {result.status for result in report.results} == {"unsupported"}
    assert {result.message for result in report.results} == {"not claimed: param_groups"}


@pytest.mark.parametrize("claim", ["param_groups", "weight_result"])
def test_an_explicit_claim_is_judged_instead_of_the_detected_one(claim: str) -> None:
    target = functions(
        stage_backward_input=own_context,
        stage_backward_weight=lambda weights, context: returns_nothing(weights, context.groups),
        gradconform_capabilities={claim: True},
    )
    report = judged(target, "grad_tuple.by_hand.*", "state.weight_result.*")
    claimed = {"param_groups": "grad_tuple.by_hand", "weight_result": "state.weight_result"}[claim]
    for result in report.results:
        assert result.status == ("failed" if result.check.startswith(claimed) else "unsupported"), result.message


def test_a_weight_pass_that_returns_nothing_claims_no_result() -> None:
    report = judged(functions(stage_backward_weight=returns_nothing), "state.weight_result.*", "grad_tuple.by_hand.*")
    for result in report.results:
        of_result = result.check.startswith("state.weight_result")
        assert (result.status, result.message) == (
            ("unsupported", "not claimed: weight_result") if of_result else ("passed", "")
        )


def test_a_check_passed_by_a_second_reading_reports_only_its_error_ratio() -> None:
    report = judged(functions(stage_backward_weight=returns_its_own), "state.weight_result.*")
    assert [result.status for result in report.results] == ["passed"] * 3
    assert all((result.error_ratio or 0.0) <= 1.0 for result in report.results)


class LossInBackward(AutogradSession):
    """Plain autograd that computes the loss where backward starts, once more for the log."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, replace(spec, loss_fn=None))
        self._of_loss = spec.loss_fn
        self._targets: dict[int, Any] = {}

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        self._targets[mb] = target
        return super().forward(mb, args)

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        if self._of_loss is not None:
            args, outputs = self._forwards[mb]
            self._forwards[mb] = args, self._of_loss(outputs, self._targets.pop(mb))
        return super().backward(mb, output_grads)


class TracedInOpen(AutogradSession):
    """Plain autograd that runs its stage and loss on fake tensors when it is opened."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        if spec.loss_fn is not None:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                outputs, target = (
                    map_leaves(lambda leaf: mode.from_tensor(leaf) if isinstance(leaf, Tensor) else leaf, tree)
                    for tree in (spec.example_outputs, spec.example_target)
                )
                assert spec.loss_fn(outputs, target).shape == ()


@pytest.mark.parametrize("session", [LossInBackward, TracedInOpen])
def test_the_loss_may_be_computed_at_any_time(session: type[AutogradSession]) -> None:
    report = judged(adapter(session, split=False, mixed=False), "full.loss.*", "schedule.gradients.gpipe-*")
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.summary["passed"] > 30


def ones_for_scalars(outputs: Any, grads: Any) -> Any:
    """Return gradients in which None for a 0-d output is 1, as plain autograd reads it."""
    if not isinstance(grads, (tuple, list)) or len(grads) != len(outputs):
        return grads
    pairs = zip(outputs, grads, strict=True)
    return tuple(torch.ones_like(o) if g is None and isinstance(o, Tensor) and not o.dim() else g for o, g in pairs)


def test_none_for_a_scalar_output_may_be_read_as_one() -> None:
    target = functions(
        stage_backward=lambda o, g, i: split.stage_backward(o, ones_for_scalars(o, g), i),
        stage_backward_input=lambda o, g, i, w: split.stage_backward_input(o, ones_for_scalars(o, g), i, w),
    )
    report = judged(target, "grad_tuple.none.*", "grad_tuple.none_scalar.*")
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.summary["passed"] == 16
    claiming = SimpleNamespace(**vars(target), gradconform_capabilities={"none_output_grad": True})
    told = {result.check for result in judged(claiming, "grad_tuple.none.*", "grad_tuple.none_scalar.*").failures}
    assert told == {"grad_tuple.none_scalar.full", "grad_tuple.none_scalar.split"}


class Queue(AutogradSession):
    """Plain autograd that defers W in a queue that knows no micro-batches: W runs what stands at its head."""

    def backward_weight(self, mb: int) -> Any:
        del mb
        if not self._weight_roots:
            msg = "the queue is empty"
            raise RuntimeError(msg)
        return super().backward_weight(next(iter(self._weight_roots)))


class GlobalQueue(Queue):
    """The same with one queue for all sessions, cleared when one is closed."""

    _shared: ClassVar[dict[int, Any]] = {}

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self._weight_roots = self._shared


@pytest.mark.parametrize("session", [Queue, GlobalQueue])
def test_a_fifo_queue_runs_only_checks_that_it_can_support(session: type[AutogradSession]) -> None:
    target = adapter(session, weight_order="fifo", global_state=session is GlobalQueue)
    report = judged(target, "misuse.*", "accumulate.order.*", "lifetime.*", "schedule.*")
    assert [(result.check, result.message) for result in report.failures] == []
    ran = {result.check for result in report.results if result.status == "passed"}
    assert {"misuse.forgotten_weight.next-session", "misuse.next_session.weight-twice"} <= ran
    assert "misuse.weight_before_input.other" not in ran
    assert len([name for name in ran if name.startswith("schedule.alone.")]) == 20
    assert any(name.startswith("schedule.gradients.") for name in ran) == (session is Queue)


def test_a_class_wide_queue_conforms_except_for_checks_with_two_active_stages() -> None:
    report = check_stage_backward(adapter(GlobalQueue, weight_order="fifo", global_state=True))
    assert (report.verdict, report.exit_code, report.lacks) == ("conforms in part", 0, ())
    withheld = {result.check for result in report if result.unclaimed == ("global_state=False",)}
    assert {name.rpartition(".")[0] for name in withheld} >= {"schedule.gradients", "schedule.chain"}
    asked = {result.check for result in report if result.status == "passed"}
    chained = {name.rpartition(".")[2] for name in withheld if name.startswith("schedule.")}
    assert chained == {name.rpartition(".")[2] for name in asked if name.startswith("schedule.alone.")}
    assert "more than one stage at a time in a process (global_state=False)" in verdict(report)


class GradOnly(AutogradSession):
    """Adds what ``torch.autograd.grad`` returns, so that no hook on a parameter is ever called."""

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        found = self.backward_input(mb, output_grads)
        self.backward_weight(mb)
        return found

    def backward_weight(self, mb: int) -> None:
        edges, starts = self._weight_roots.pop(mb)
        sought = [parameter for parameter in self._parameters.values() if parameter.requires_grad]
        for parameter, grad in zip(sought, torch.autograd.grad(edges, sought, starts, allow_unused=True), strict=True):
            parameter.grad = grad if parameter.grad is None or grad is None else parameter.grad.add_(grad)


def test_a_target_that_claims_no_hooks_skips_hook_checks() -> None:
    report = judged(adapter(GradOnly, hooks="nowhere", module_hooks=False), "hooks.*")
    assert [(result.check, result.message) for result in report.failures] == []
    hooks = [result for result in report.results if result.check.startswith(("hooks.tensor", "hooks.post"))]
    assert len(hooks) == 24
    assert all(result.status == "unsupported" for result in hooks)


class FlushedAtTheEnd(AutogradSession):
    """Plain autograd that runs every W in ``finish``."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self._asked: list[int] = []

    def backward_weight(self, mb: int) -> None:
        if mb not in self._weight_roots or mb in self._asked:
            msg = f"W of micro-batch {mb} has nothing to do"
            raise RuntimeError(msg)
        self._asked.append(mb)

    def finish(self) -> None:
        while self._asked:
            super().backward_weight(self._asked.pop(0))


class FlushedWrong(FlushedAtTheEnd):
    """The same, but the last W of a step is lost."""

    def finish(self) -> None:
        self._asked[-1:] = []
        super().finish()


AREAS = (
    "accumulate.*", "grad_tuple.size.*", "hooks.*", "lifetime.*", "misuse.*", "property.split.*", "repeat.*",
    "schedule.*", "split.gradients.mlp*", "state.*",
)  # fmt: skip


def test_weights_may_be_flushed_when_the_step_is_finished() -> None:
    report = judged(adapter(FlushedAtTheEnd, weight_when="finish"), *AREAS)
    assert [(result.check, result.message) for result in report.failures] == []
    assert report.summary["passed"] > 200


def test_a_flushed_gradient_is_judged_as_soon_as_it_is_due() -> None:
    some = (
        "accumulate.iterations.split-3",
        "split.gradients.mlp",
        "schedule.gradients.zbv-zero-bubble-2x2x3",
        "misuse.weight_twice.mlp",
    )
    failures = judged(adapter(FlushedWrong, weight_when="finish"), *some).failures
    told = {result.check: result.findings for result in failures}
    assert {finding["action"] for finding in told["accumulate.iterations.split-3"]} == {"finish"}
    assert set(some) == set(told)
    unclaimed = judged(adapter(FlushedAtTheEnd), "accumulate.iterations.split-3").failures
    assert [result.findings[0]["action"] for result in unclaimed] == ["W0"]


class _Cancelling(nn.Module):
    """A softmax that ends a stage, or is summed in the middle of one, or a bias that a norm takes off again."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.linear, self.softmax = kind, nn.Linear(5, 33), nn.Softmax(-1)
        self.norm = nn.BatchNorm1d(33) if kind == "normed" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        shares: Tensor = self.softmax(self.norm(self.linear(x)))
        return torch.tanh(shares.sum(-1)) if self.kind == "summed" else shares


class _Softmax(torch.autograd.Function):
    """A softmax whose backward adds in another order, and is wrong by a part of what it adds."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wrong_by: float) -> Tensor:
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        ctx.wrong_by = wrong_by
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (y,) = ctx.saved_tensors
        terms = y * grads[0]
        return terms - y * terms.flip(-1).cumsum(-1)[..., -1:] * (1 - ctx.wrong_by), None


def own_softmax(wrong_by: float) -> SimpleNamespace:
    """Return plain autograd on stages whose softmax is that one."""

    def layer(module: nn.Softmax) -> Callable[[Tensor], Tensor]:
        del module
        return lambda x: _Softmax.apply(x, wrong_by)  # type: ignore[no-any-return, no-untyped-call] # so is torch's

    def opened(stage: nn.Module, spec: StageSpec) -> AutogradSession:
        swap(stage, nn.Softmax, layer)
        return AutogradSession(stage, spec)

    return adapter(opened, shared_module=False, complex=False)


@pytest.mark.parametrize("kind", ["last", "summed", "normed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rounding_of_cancelling_terms_passes_and_an_error_of_a_thousandth_fails(kind: str, dtype: str) -> None:
    stage = StageCase(kind, "terms that cancel", lambda: _Cancelling(kind), (Normal((7, 5)),))
    areas = ("*.full.gradients", "*.grad_tuple.layout.*")
    right = judged(own_softmax(0.0), *areas, stage=stage, dtype=dtype)
    assert [(result.check, result.message) for result in right.failures] == []
    assert right.summary["passed"] > 2
    wrong = {result.check for result in judged(own_softmax(1e-3), *areas, stage=stage, dtype=dtype).failures}
    assert f"stage.{kind}.full.gradients" in wrong
