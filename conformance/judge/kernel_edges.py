"""Compares the kernels of a device with the CPU's on a sample at the edges of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradconform.devices.device import Device, device_of
from gradconform.devices.probe import OPERATIONS
from gradconform.devices.tensor_facts import facts_withheld
from gradconform.diagnosis.cause import Cause
from gradconform.fixtures.operations.edges.edge_sample import EdgeSample
from gradconform.trees import tensors

from .finding import Finding
from .kernel_results import Difference
from .oracle_result import COPIED_WRONG, WRONG_ON_CPU, OracleResult
from .wrong_operation import Compared


@dataclass(frozen=True, slots=True)
class EdgeFault:
    """A wrong kernel, the sample that shows it, and the difference."""

    sample: EdgeSample
    cause: Cause
    seen: Difference

    def finding(self, failing: int, tried: int) -> Finding:
        """Return the finding of a check; the kernel is wrong in so many samples of those that were tried."""
        kernel = self.cause.names[0]
        text = "differs from the CPU's kernel"
        needs = {"sample": f"{self.sample.text} ({failing} of {tried} fail)"}
        error, bound = self.seen.error, self.seen.bound
        found = Finding("mismatch", kernel, "", text, error, bound, self.seen.ratio, self.cause)
        return replace(found, needs=needs)


@dataclass(frozen=True, slots=True)
class EdgesCompared:
    """The wrong kernels of one sample, and its comparisons."""

    faults: tuple[EdgeFault, ...]
    result: OracleResult


def edges_of(sample: EdgeSample, device: torch.device, dtype: torch.dtype, seed: int) -> EdgesCompared:
    """Return the comparison of each kernel that a sample runs, forward and backward, with the CPU's.

    Each kernel gets the device's own arguments, on both, so one wrong kernel hides no other. A kernel is wrong if it is
    in two runs: a device that runs late may have no values yet. It cannot be judged if the CPU's own kernel, given the
    arguments in the same layouts, differs from itself on dense ones. Raises what the operation raises.
    """
    here = device_of(device)
    if OPERATIONS in facts_withheld(device.type):
        return EdgesCompared(
            (), OracleResult(not_tried={f"{device.type} does not show operations": [sample.operation]})
        )
    compared = _run(sample, here, dtype, seed)
    wrong = compared.wrong.keys() & _run(sample, here, dtype, seed).wrong.keys() if compared.wrong else set()
    on_cpu = wrong & _run(sample, device_of(torch.device("cpu")), dtype, seed).wrong.keys() if wrong else set()
    faults = tuple(EdgeFault(sample, *compared.wrong[name]) for name in compared.wrong if name in wrong - on_cpu)
    reasons = {WRONG_ON_CPU: on_cpu, COPIED_WRONG: compared.miscopied}
    not_tried = {why: names for why, names in reasons.items() if names}
    tried = frozenset([sample.text])
    return EdgesCompared(faults, OracleResult(compared=len(compared.names), tried=tried, not_tried=not_tried))


def _run(sample: EdgeSample, device: Device, dtype: torch.dtype, seed: int) -> Compared:
    """Run a sample forward and backward on a device, and compare each of its kernels."""
    arguments = sample.arguments(dtype, seed)
    leaves = [one.detach().to(device.torch_device).requires_grad_(one.requires_grad) for one in arguments]
    compared = Compared(device, twice=False, edges=True, ties=sample.ties)
    with torch.enable_grad(), compared:
        outputs = [one for one in tensors(sample.outputs(leaves)) if one.requires_grad]
    grads = list(_output_grads(outputs, device, seed))
    with compared:
        torch.autograd.grad(outputs, [leaf for leaf in leaves if leaf.requires_grad], grads, allow_unused=True)
    return compared


def _output_grads(outputs: Sequence[Tensor], device: Device, seed: int) -> Iterator[Tensor]:
    """Yield random output gradients; that of a single number is 1, which torch expands."""
    generator = torch.Generator().manual_seed(seed + 1)
    for output in outputs:
        drawn = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        yield (drawn if output.dim() else torch.ones(())).to(output.dtype).to(device.torch_device)
