"""A gradient of stride 0, such as that of a summed parameter, is accumulated once per element.

The second backward adds in place to the first gradient, which is expanded. Each of its 11 elements adds to the same
value: the gain's gradient becomes the first plus 11 times the second.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import os
import sys

os.environ.setdefault("PJRT_DEVICE", "CPU")
import torch
import torch_xla

gain = torch.ones(11).to(torch_xla.device()).requires_grad_()
for _ in range(2):
    (gain.sum() * 2).backward()
got = gain.grad.cpu()
print(f"expected: {torch.full((11,), 4.0).tolist()}")
print(f"got: {got.tolist()}")
sys.exit(int(not torch.equal(got, torch.full((11,), 4.0))))
