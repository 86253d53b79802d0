import torch
from fairscale.nn import Pipe
from torch import nn


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 2)

    def forward(self, x):
        return self.first(x), self.second(x)


def test_loss_that_reads_another_output_than_the_first():
    torch.manual_seed(0)
    heads, x = Heads(), torch.randn(7, 5)
    (expected,) = torch.autograd.grad(heads(x)[1].sum(), heads.second.weight)
    pipe = Pipe(nn.Sequential(heads), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
    loss = pipe(x)[1].sum()
    del pipe  # at exit it would wait for workers that are gone
    loss.backward()
    torch.testing.assert_close(heads.second.weight.grad, expected)
