"""A wrong stage backward for tests of reports."""

from __future__ import annotations

#: A stage backward that is plain autograd, but for an input gradient of half its size.
HALVED = """
import torch

def stage_backward(stage_output, output_grads, input_values):
    outputs = stage_output if isinstance(stage_output, (tuple, list)) else [stage_output]
    torch.autograd.backward(outputs, output_grads or [None] * len(outputs))
    return tuple(None if value.grad is None else value.grad * 0.5 for value in input_values)
"""
