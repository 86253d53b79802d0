"""A batch normalisation in float64 rounds its epsilon to float32.

Its outputs are the CPU's for an epsilon of 9.999999747378752e-06, which is 1e-05 in float32. For the epsilon that was
given they are wrong by more than a thousand eps of float64.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import os
import sys

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch
import torch_xla

torch.manual_seed(0)
x = torch.randn(7, 11, dtype=torch.float64)


def normalised(x: torch.Tensor, epsilon: float = 1e-5) -> torch.Tensor:
    return torch.nn.functional.batch_norm(x, None, None, training=True, eps=epsilon)


def in_eps(epsilon: float) -> float:
    error = (normalised(x.to(torch_xla.device())).cpu() - normalised(x, epsilon)).abs().max()
    return float(error / normalised(x).abs().max() / torch.finfo(torch.float64).eps)


rounded = torch.tensor(1e-5, dtype=torch.float32).item()
print("expected: a few eps of float64 from the CPU's result")
print(f"got: {in_eps(1e-5):.0f} eps, and {in_eps(rounded):.0f} eps from the CPU's result for the epsilon {rounded}")
sys.exit(int(in_eps(1e-5) > 32))
