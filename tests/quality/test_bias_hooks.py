"""Hooks on biases are claimed apart from those on weights, and neither claim excuses the other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gradconform import Capabilities, Report, check_stage_backward
from gradconform.reference.autograd import AutogradSession, edge_of, pair_roots

CHECKS = ("hooks.tensor*.*-split", "hooks.post*.*-split", "hooks.altered.*-split")


class BiasesInI(AutogradSession):
    """Accumulates biases in I and weights in W, each with its hooks."""

    def backward_input(self, mb: int, output_grads: Any) -> tuple[Tensor | None, ...]:
        args, outputs = self._forwards.pop(mb)
        roots, grads = pair_roots(outputs, output_grads)
        biases = [one for one in self._parameters.values() if one.requires_grad and one.dim() <= 1]
        found = torch.autograd.grad(roots, args, grads, retain_graph=True)
        self.give(roots, grads, biases)
        self._weight_roots[mb] = [edge_of(root) for root in roots], list(grads)
        return found

    def give(self, roots: Any, grads: Any, biases: list[torch.nn.Parameter]) -> None:
        """Add the gradients of the biases through autograd, so that their hooks fire."""
        if biases:
            torch.autograd.backward(roots, grads, inputs=biases, retain_graph=True)

    def backward_weight(self, mb: int) -> None:
        edges, starts = self._weight_roots.pop(mb)
        self.weigh(edges, starts, [one for one in self._parameters.values() if one.requires_grad and one.dim() > 1])

    def weigh(self, edges: Any, starts: Any, weights: list[torch.nn.Parameter]) -> None:
        """Add the gradients of the weights through autograd, so that their hooks fire."""
        torch.autograd.backward(edges, starts, inputs=weights)


class WeightsSilent(BiasesInI):
    """The same, but no hook on a weight ever fires."""

    def weigh(self, edges: Any, starts: Any, weights: list[torch.nn.Parameter]) -> None:
        for weight, grad in zip(weights, torch.autograd.grad(edges, weights, starts), strict=True):
            weight.grad = grad if weight.grad is None else weight.grad + grad


def judged(session: type[AutogradSession], **claims: Any) -> Report:
    claimed = Capabilities(input_pass_touches_params=True, **claims)
    adapter = SimpleNamespace(name="early", capabilities=claimed, open=session)
    return check_stage_backward(adapter, checks=CHECKS)


def blamed(report: Report) -> set[str]:
    return {str(finding["where"]).rpartition(".")[2] for result in report.failures for finding in result.findings}


def test_bias_hooks_called_in_i_fail_without_the_claim() -> None:
    assert blamed(judged(BiasesInI)) == {"bias"}


def test_with_the_early_bias_hook_claim_only_weight_hooks_are_judged() -> None:
    report = judged(BiasesInI, bias_hooks="early")
    assert [(result.check, result.message) for result in report.failures] == []
    passed = {result.check for result in report if result.status == "passed"}
    assert {"hooks.tensor.mlp-split", "hooks.post_accumulate.mlp-split"} <= passed
    altered = [result for result in report if result.check.startswith("hooks.altered")]
    assert {"bias_hooks=as_weights" in result.unclaimed for result in altered} == {True}


def test_the_bias_hook_claim_does_not_excuse_weight_hooks() -> None:
    assert blamed(judged(WeightsSilent, bias_hooks="early")) == {"weight"}


class NormsInI(BiasesInI):
    """The same, but the biases of Linears get their gradients without a hook; norms get theirs in I, with one."""

    def give(self, roots: Any, grads: Any, biases: list[torch.nn.Parameter]) -> None:
        silent = {id(one.bias) for one in self._stage.modules() if isinstance(one, torch.nn.Linear)}
        hidden = [one for one in biases if id(one) in silent]
        super().give(roots, grads, [one for one in biases if id(one) not in silent])
        for bias, grad in zip(hidden, torch.autograd.grad(roots, hidden, grads, retain_graph=True), strict=True):
            bias.grad = grad if bias.grad is None else bias.grad + grad


def test_biases_without_hooks_beside_norms_with_early_ones_have_a_claim_of_their_own() -> None:
    assert blamed(judged(NormsInI)) == {"bias"}
    report = judged(NormsInI, bias_hooks="early_or_never")
    assert [(result.check, result.message) for result in report.failures] == []
    assert "hooks.tensor.mlp-split" in {result.check for result in report if result.status == "passed"}


def test_the_early_claim_fails_if_some_of_the_hooks_never_fire() -> None:
    report = judged(NormsInI, bias_hooks="early")
    assert blamed(report) == {"bias"}
    texts = {finding["text"] for result in report.failures for finding in result.findings}
    assert {text.partition(" was not called in I, which bias_hooks='early' claims")[2] for text in texts} == {""}


@pytest.mark.parametrize("value", ["nowhere", "with_grad", True])
def test_an_unknown_value_of_the_claim_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"capability bias_hooks: expected one of as_weights, early, never, early_or"):
        Capabilities(bias_hooks=value)
