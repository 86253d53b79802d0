"""as_strided_scatter leaves no gap between rows, and its gradient is wrong for the same reason.

With sizes (2, 2) and strides (3, 1) it writes 1, 2, 3, 4 to the first four elements, and not 1, 2, 0, 3, 4.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import os
import sys

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch
import torch_xla

values, written = torch.zeros(6), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
expected = torch.as_strided_scatter(values, written, (2, 2), (3, 1)).tolist()
there = (one.to(torch_xla.device()) for one in (values, written))
got = torch.as_strided_scatter(*there, (2, 2), (3, 1)).cpu().tolist()
print(f"expected: {expected}")
print(f"got: {got}")
sys.exit(int(got != expected))
