"""as_strided of a transposed tensor takes the elements of a transposed copy, and so does its gradient.

``torch.arange(12.0).reshape(3, 4).t().as_strided((2, 2), (4, 1), 1)`` is 1, 2, 5, 6 on the CPU.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import os
import sys

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch
import torch_xla

values = torch.arange(12.0).reshape(3, 4)
expected = values.t().as_strided((2, 2), (4, 1), 1).tolist()
got = values.to(torch_xla.device()).t().as_strided((2, 2), (4, 1), 1).cpu().tolist()
print(f"expected: {expected}")
print(f"got: {got}")
sys.exit(int(got != expected))
