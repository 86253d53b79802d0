"""Targets that accumulate outside ``Parameter.grad`` are given every check that is not about ``.grad`` itself."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradconform import check_stage_backward, contract
from gradconform.reference.faults import FAULTS
from gradconform.reference.variants import VARIANTS
from gradconform.reference.variants.main_grad import MainGradSession
from gradconform.reference.variants.sessions import Returned, adapter
from gradconform.run.runner import Runner
from gradconform.target.resolve import resolve

#: What a target is not given because its gradients are in main_grad, and why.
ABOUT_GRAD = {
    "caller.buffer": (5, "the caller reads its own buffer, of which .grad is a view"),
    "hooks.altered": (4, "a hook moves the gradient out of .grad"),
    "hooks.post_accumulate_grad": (6, "the sum in .grad is read while the hook runs"),
    "state.stored_layout": (4, "the strides of .grad are compared"),
    "steps.grads": (8, "the caller puts another tensor into .grad"),
}


def runner(made: object, dtype: torch.dtype = torch.float32) -> Runner:
    """Return a runner on the CPU."""
    return Runner(resolve(made), device=torch.device("cpu"), dtype=dtype)


def test_only_checks_about_param_grad_are_withheld_from_a_main_grad_target() -> None:
    run = runner(VARIANTS["main-grad-by-hooks"]())
    in_grad = replace(run.target.capabilities, grads_in_param_grad=True)
    withheld = {
        name: tuple(check.unmet(run.claims))
        for name, check in contract.checks_of().items()
        if check.profile != "full" and not check.unmet(in_grad) and check.unmet(run.claims)
    }
    assert set(withheld.values()) == {("grads_in_param_grad",)}
    found = Counter(".".join(name.split(".")[:2]) for name in withheld)
    assert found == {family: count for family, (count, _) in ABOUT_GRAD.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("variant", "lacking"),
    [
        ("main-grad-by-hooks", set()),
        ("main-grad-in-the-kernel", {"post_accumulate_hooks"}),
        ("moved-away-and-given-back", {"grads_on_param"}),
        ("gradients-returned", {"grads_on_param", "post_accumulate_hooks"}),
        ("sums-in-pairs", {"clears_grads", "grads_on_param", "post_accumulate_hooks"}),
    ],
)
def test_one_linear_shows_how_a_target_treats_gradients_stored_outside_grad(
    variant: str, lacking: set[str], dtype: torch.dtype
) -> None:
    run = runner(VARIANTS[variant](), dtype)
    claims = ("clears_grads", "grads_on_param", "post_accumulate_hooks")
    assert {name for name in claims if not getattr(run.claims, name)} == lacking
    assert all(getattr(run.target.capabilities, name) for name in claims)


def test_a_feature_that_a_target_does_not_show_is_unsupported() -> None:
    report = check_stage_backward(VARIANTS["sums-in-pairs"](), checks=["accumulate.steps.*", "accumulate.prior.full"])
    assert {result.check: result.unclaimed for result in report if result.status == "unsupported"} == {
        "accumulate.prior.full": ("grads_on_param",),
        **{
            f"accumulate.steps.{way}-zero-{how}": ("clears_grads",)
            for way in ("full", "split")
            for how in ("fill", "none")
        },
    }
    assert {result.status for result in report} == {"passed", "unsupported"}


class _Uncleared(MainGradSession):
    """Has a method that clears nothing."""

    def zero_grads(self) -> None:
        """Do nothing."""


class _Skipping(Returned):
    """Adds nothing once its sums were filled with zeros."""

    def store(self, name: str, grad: Tensor | None) -> None:
        """Add to what is not zero."""
        held = self.sums[name]
        if held is None or bool(held.any()):
            super().store(name, grad)


@pytest.mark.parametrize("session", [_Uncleared, _Skipping])
def test_a_target_that_is_wrong_after_cleared_gradients_fails(session: Any) -> None:
    made = adapter(session, grads_in_param_grad=False, hooks="nowhere")
    report = check_stage_backward(made, checks=["accumulate.steps.full-*"])
    status = {result.check.rpartition(".")[2]: result.status for result in report}
    assert status == {"full-no-zero": "passed", "full-zero-fill": "failed", "full-zero-none": "failed"}


@pytest.mark.parametrize("name", [name for name, fault in FAULTS.items() if fault.topic == "main_grad"])
def test_a_public_bug_of_main_grad_fails_the_checks_that_name_it(name: str) -> None:
    fault = FAULTS[name]
    report = check_stage_backward(fault.make().adapter, checks=list(fault.named))
    assert {result.status for result in report} == {"failed"}
    told = {finding["cause"]["kind"] for one in report for finding in one.findings if finding["cause"]}
    assert {cause["kind"] for cause in fault.causes} & told or not fault.causes


def test_a_dense_main_grad_of_a_sparse_gradient_is_right() -> None:
    checks = ["*.gradients.embedding-sparse", "differing.sums.sparse-then-dense-*"]
    report = check_stage_backward(VARIANTS["main-grad-always-dense"](), checks=checks)
    assert [result.status for result in report] == ["passed"] * 4, report.failures
