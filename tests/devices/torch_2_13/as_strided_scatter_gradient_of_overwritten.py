"""The backward of as_strided_scatter gives the input the gradient of overwritten elements, and zero for kept ones.

It has to be the other way round: the output does not depend on an overwritten element. Finite differences show it. The
gradient test of torch 2.13 expects it to fail, pytorch #88105; 2.15 has no such mark and the same gradient.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch

kept = torch.zeros(4, requires_grad=True)
written = torch.ones(2, requires_grad=True)
torch.as_strided_scatter(kept, written, (2,), (1,)).backward(torch.tensor([1.0, 2.0, 3.0, 4.0]))
print(f"expected: the input's gradient [0.0, 0.0, 3.0, 4.0]; got: {kept.grad.tolist()}")
sys.exit(int(kept.grad.tolist() != [0.0, 0.0, 3.0, 4.0]))
