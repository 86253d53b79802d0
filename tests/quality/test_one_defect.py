"""One defect is one finding: its consequences, other formulas and the kit's own guesses accuse nobody."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform import check_stage_backward
from gradconform.adapter import Capabilities, StageSpec
from gradconform.drive.observation import Alive
from gradconform.drive.watches import LifetimeWatch
from gradconform.judge.finding import Finding
from gradconform.judge.values import Known, compare
from gradconform.reference.autograd import AutogradSession
from gradconform.results import Report

#: Outputs that nothing frees.
KEPT: list[Any] = []


def judged(session: Callable[[nn.Module, StageSpec], object], *checks: str, **claims: Any) -> Report:
    """Return the report on an adapter that opens such sessions."""
    target = SimpleNamespace(name="one-defect", capabilities=Capabilities(split=False, **claims), open=session)
    return check_stage_backward(target, checks=checks)


def failed(report: Report) -> dict[str, set[str]]:
    """Return the failed checks, each with the kinds of its findings."""
    return {
        result.check: {finding["kind"] for finding in result.findings}
        for result in report
        if result.status in {"failed", "error"}
    }


class RefusesToFinish(AutogradSession):
    """Plain autograd whose finish raises if a backward is left."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self.left: set[int] = set()

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        self.left.add(mb)
        return super().forward(mb, args, target)

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        found = super().backward(mb, output_grads)
        self.left.discard(mb)
        return found

    def finish(self) -> None:
        if self.left:
            msg = f"no backward of {sorted(self.left)}"
            raise RuntimeError(msg)
        super().finish()


def test_finish_may_raise_after_an_error() -> None:
    report = judged(RefusesToFinish, "errors.*")
    assert failed(report) == {}
    assert sum(result.status == "passed" for result in report) >= 9


class RefusesFrozen(AutogradSession):
    """Plain autograd that raises if a parameter is frozen."""

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        if not all(parameter.requires_grad for parameter in self._parameters.values()):
            msg = "frozen"
            raise RuntimeError(msg)
        return super().backward(mb, output_grads)


def test_hooks_and_tensors_after_a_raise_are_no_second_defect() -> None:
    found = failed(judged(RefusesFrozen, "hooks.*", "lifetime.*"))
    assert any("frozen" in name for name in found)
    assert set().union(*found.values()) == {"error"}


class LeavesGradOff(AutogradSession):
    """Plain autograd that leaves grad mode off after a backward."""

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        found = super().backward(mb, output_grads)
        torch.set_grad_enabled(False)
        return found


def test_grad_mode_is_state_of_the_process_alone() -> None:
    found = {
        name.rpartition(".")[0] for name in failed(judged(LeavesGradOff, "state.requires_grad.*", "state.process.*"))
    }
    assert found == {"state.process"}


class KeepsOutputs(AutogradSession):
    """Plain autograd, whose module keeps the outputs of every micro-batch."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        outputs = super().forward(mb, args, target)
        KEPT.append([outputs])
        return outputs


def test_what_holds_a_tensor_is_named() -> None:
    try:
        report = judged(KeepsOutputs, "lifetime.full.mlp")
    finally:
        KEPT.clear()
    (result,) = report.results
    assert "keeps 1 output alive; plain autograd keeps 0; KEPT of " in result.message
    assert "test_one_defect holds them" in result.message
    assert "garbage collector" not in result.message


def test_what_holds_a_tensor_is_searched_for_only_beyond_plain_autograds() -> None:
    output = torch.ones(1)
    watch = LifetimeWatch()
    with watch.watch(0, ()):
        watch.outputs(0, output)
    assert watch.seen(ended=True, allowed={0: Alive(outputs=1, saved=0, args=0)}).keys() == {"alive"}
    assert watch.seen(ended=True, allowed={0: Alive(outputs=0, saved=0, args=0)}).keys() == {"alive", "held"}
    assert watch.seen(ended=True, allowed={}).keys() == {"alive"}, "plain autograd itself is measured"


class Cycle(AutogradSession):
    """Plain autograd, whose outputs are in a cycle that only the garbage collector frees."""

    def forward(self, mb: int, args: tuple[Any, ...], target: Any = None) -> Any:
        outputs = super().forward(mb, args, target)
        cycle: list[Any] = [outputs]
        cycle.append(cycle)
        return outputs


def test_a_cycle_is_called_one_only_if_the_garbage_collector_frees_it() -> None:
    (result,) = judged(Cycle, "lifetime.full.mlp").results
    assert "plain autograd keeps 0; only the garbage collector frees them" in result.message


class ZeroAfterwards(AutogradSession):
    """Plain autograd that returns zeros from the second micro-batch on."""

    def backward(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        found = super().backward(mb, output_grads)
        return tuple(one if one is None or mb == 0 else torch.zeros_like(one) for one in found)


def test_a_zero_among_nan_and_inf_is_one_finding_with_its_cause() -> None:
    report = judged(ZeroAfterwards, "grad_tuple.nonfinite.inf-full", "grad_tuple.nonfinite.nan-full")
    for result in report:
        ((finding),) = [one for one in result.findings if one["kind"] != "error"]
        assert (finding["kind"], finding["cause"]["kind"]) == ("mismatch", "zero"), result.message


class ZeroMainGrad(AutogradSession):
    """Plain autograd that moves gradients into ``main_grad``, zeros before the first backward."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        super().__init__(stage, spec)
        self._main = {name: torch.zeros_like(one) for name, one in stage.named_parameters()}

    def param_grads(self) -> dict[str, Tensor | None]:
        return dict(self._main)


def test_zeros_where_none_belongs_are_not_called_rounded() -> None:
    (result,) = judged(ZeroMainGrad, "full.gradients.mlp", grads_in_param_grad=False).results
    assert "zeros instead of None" in result.message
    assert "rounded" not in result.message


@pytest.mark.parametrize(
    ("got", "expected", "accepted"),
    [
        (-math.inf, math.nan, True),  # g * (p - 1) of a fused cross entropy, with g inf
        (math.nan, math.inf, True),
        (-math.inf, math.inf, True),
        (0.0, math.nan, False),
        (1.0, math.inf, False),
        (math.inf, 1.0, False),
        (math.nan, 0.0, False),
    ],
)
def test_two_formulas_may_differ_where_plain_autograd_is_not_finite(
    got: float,
    expected: float,
    accepted: bool,  # noqa: FBT001 (a parameter of the test)
) -> None:
    right = torch.tensor([1.0, expected, 2.0])
    reference = Known(right.double())
    seen = list(compare("input gradient", "input 0", "B0", torch.tensor([1.0, got, 2.0]), right, lambda: reference))
    assert any(isinstance(one, Finding) for one in seen) is not accepted
