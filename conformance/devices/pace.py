"""The pace of a device here and now: the seconds of a small step, from which the time of a run is estimated."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from .device import device_of

#: The most steps, and the seconds after which no other one begins: a device that compiles takes long for each.
_STEPS, _SECONDS = 40, 2.0
#: Steps before the time is taken: they load libraries and start threads.
_BEFORE = 2


def pace(device: torch.device, clock: Callable[[], float] = time.perf_counter) -> float | None:
    """Return the seconds of one step on ``device`` by ``clock``; None if it lacks an operation of the step.

    Each step has sizes of its own, as the checks have: a device that compiles a kernel for each shape does so here too.
    """
    try:
        for size in range(1, _BEFORE + 1):
            _step(device, size)
        began = clock()
        for done in range(1, _STEPS + 1):
            _step(device, _BEFORE + done)
            passed = clock() - began
            if passed > _SECONDS:
                break
    except Exception:  # noqa: BLE001 (backends raise anything for missing features)
        return None
    return passed / done


def _step(device: torch.device, size: int) -> None:
    """Run a forward and a backward, and read the gradients; the probe has tried each of these operations."""
    inputs = torch.ones(3, size, device=device).requires_grad_()
    weight = torch.ones(size, size + 1, device=device).requires_grad_()
    (torch.mm(inputs, weight) * 2).sum().backward()
    for gradient in (inputs.grad, weight.grad):
        assert gradient is not None  # noqa: S101 (the backward above makes it)
        device_of(device).to_cpu(gradient)
