"""ctc_loss reads targets in one dimension as contiguous: if they have gaps in memory, the loss is that of other labels.

The gradient is wrong with it. Targets in two dimensions are read by their strides.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
from torch.nn import functional as F

torch.manual_seed(0)
log_probs = torch.randn(50, 3, 20).log_softmax(-1)
targets = torch.randint(1, 20, (75, 2))[:, 0]
lengths = [50, 50, 50], [30, 25, 20]
expected, got = F.ctc_loss(log_probs, targets.contiguous(), *lengths), F.ctc_loss(log_probs, targets, *lengths)
print(f"expected: {expected:.6g}, as with contiguous targets")
print(f"got: {got:.6g}")
sys.exit(int(not torch.allclose(got, expected, atol=1e-4)))
