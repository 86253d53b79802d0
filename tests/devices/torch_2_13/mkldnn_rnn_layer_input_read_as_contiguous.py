"""torch.mkldnn_rnn_layer reads an input with gaps in memory as contiguous.

``nn.LSTM`` makes its input contiguous first, so only a direct call meets it.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch

torch.manual_seed(0)
x = torch.randn(3, 1, 6, 2)[..., 0]
weights = [torch.randn(12, 6), torch.randn(12, 3), torch.randn(12), torch.randn(12)]
state = torch.randn(1, 3), torch.randn(1, 3)


def computed(given: torch.Tensor) -> torch.Tensor:
    """Return the output of one LSTM layer for an input."""
    found = torch.mkldnn_rnn_layer(given, *weights, *state, False, [], 2, 3, 1, True, False, False, True)  # noqa: FBT003 (torch's signature)
    return found[0]


expected, got = computed(x.contiguous()), computed(x)
print(f"expected: {expected[1, 0].tolist()}, as with a contiguous input")
print(f"got: {got[1, 0].tolist()}")
sys.exit(int(not torch.allclose(got, expected, atol=1e-4)))
