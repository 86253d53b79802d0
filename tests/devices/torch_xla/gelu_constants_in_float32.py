"""A GELU in float64 has constants in float32, and so has its gradient.

Both are wrong by about 4e-9. The values are the CPU's for a root of one half that is rounded to float32.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import os
import sys

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch
import torch_xla

values = torch.linspace(-3, 3, 25, dtype=torch.float64)
found = []
for device in (torch_xla.device(), torch.device("cpu")):
    leaf = values.to(device).requires_grad_()
    outputs = torch.nn.functional.gelu(leaf)
    outputs.sum().backward()
    found.append((outputs.detach().cpu(), leaf.grad.cpu()))
errors = [float((got - expected).abs().max()) for got, expected in zip(*found, strict=True)]
print("expected: errors below 1e-14")
print(f"got: {errors[0]:.1e} in the values, {errors[1]:.1e} in the gradient")
sys.exit(int(max(errors) > 1e-14))
