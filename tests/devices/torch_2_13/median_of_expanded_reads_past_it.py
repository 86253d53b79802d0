"""The median of an expanded tensor, along the expanded dimension, is taken from memory that is not the tensor's.

The kernel makes only a stride above 1 contiguous, and then reads neighbours in memory. Each row here is 5, 1, 4, so its
median along the rows is the row itself; the nines are no part of the tensor.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch

rows = torch.tensor([5.0, 1.0, 4.0, 9.0, 9.0])[:3].expand(3, 3)
expected, got = torch.median(rows.contiguous(), 0).values, torch.median(rows, 0).values
print(f"expected: {expected.tolist()}, as of a contiguous tensor")
print(f"got: {got.tolist()}")
sys.exit(int(not torch.equal(got, expected)))
