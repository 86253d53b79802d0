"""The gradient of an overlapping as_strided is wrong under a TorchDispatchMode that changes nothing.

Elements that several positions share get one position's gradient and not the sum: 1, 2, 3, 4 for 1, 5, 4, 0. Without
the mode it is right.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import os
import sys
from typing import Any

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch
import torch_xla
from torch.utils._python_dispatch import TorchDispatchMode


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


values = torch.zeros(4).to(torch_xla.device()).requires_grad_()
grad = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).to(torch_xla.device())
with Passing():
    values.as_strided((2, 2), (1, 1)).backward(grad)
got = values.grad.cpu().tolist()
print(f"expected: {[1.0, 5.0, 4.0, 0.0]}")
print(f"got: {got}")
sys.exit(int(got != [1.0, 5.0, 4.0, 0.0]))
