import torch
from torch import nn
from torchgpipe import GPipe


def test_autocast_reaches_the_partitions():
    linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
    pipe = GPipe(nn.Sequential(linear), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = linear(x).dtype, pipe(x).dtype
    assert found == expected
