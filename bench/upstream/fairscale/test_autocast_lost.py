import torch
from fairscale.nn import Pipe
from torch import nn


def test_autocast_reaches_the_partitions():
    linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
    pipe = Pipe(nn.Sequential(linear), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = linear(x).dtype, pipe(x).dtype
    del pipe  # at exit it would wait for workers that are gone
    assert found == expected
