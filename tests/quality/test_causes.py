"""A fault of values is told with its cause, as the catalogue has it; what is no mistake but noise is told none."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradconform import check_stage_backward
from gradconform.reference.faults import FAULTS, Fault
from gradconform.reference.faults.alterations import every_grad, target
from gradconform.results import Report
from gradconform.selftest.subject import VALUES

NAMEABLE = {name: fault for name, fault in FAULTS.items() if fault.cause is not None}

#: One and several outputs, tied parameters, prior gradients, ten micro-batches, a chain.
BROAD = ["*.gradients.mlp", "*.gradients.tied-*", "accumulate.iterations.split-10", "accumulate.prior.*"]
BROAD += ["schedule.chain.tied", "grad_tuple.size.*"]


@pytest.mark.parametrize("fault", NAMEABLE.values(), ids=NAMEABLE)
def test_a_message_on_a_fault_says_its_cause(fault: Fault) -> None:
    report = check_stage_backward(fault.make(), checks=fault.named, strict=True)
    told = "\n".join(result.message for result in report)
    assert re.search(fault.cause or "", told), told
    assert "the diagnosis failed" not in told


def replaced(drawn: Tensor, right: Tensor) -> Tensor:
    return drawn * right.abs().max()


def disturbed(drawn: Tensor, right: Tensor) -> Tensor:
    return right + 0.3 * drawn * right.abs().max()


def unevenly_scaled(drawn: Tensor, right: Tensor) -> Tensor:
    return right * (1.0 + 0.5 * drawn)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("noise", [replaced, disturbed, unevenly_scaled])
def test_noise_is_told_no_cause(noise: Callable[[Tensor, Tensor], Tensor], dtype: str) -> None:
    generator = torch.Generator().manual_seed(20)

    def edit(grad: Tensor) -> Tensor:
        if grad.layout != torch.strided or not grad.is_floating_point() or grad.numel() < 2:
            return grad  # of one number everything is a multiple
        drawn = torch.randn(grad.shape, generator=generator, dtype=torch.float64)
        return noise(drawn, grad.double()).to(grad.dtype)

    report = check_stage_backward(target(every_grad(edit)), dtype=dtype, checks=BROAD)
    assert wrong_values(report) > 50
    assert causes(report) == []


def wrong_values(report: Report) -> int:
    return sum(finding["kind"] in VALUES for result in report for finding in result.findings)


def causes(report: Report) -> list[str]:
    return [str(finding["cause"]) for result in report for finding in result.findings if finding["cause"]]
