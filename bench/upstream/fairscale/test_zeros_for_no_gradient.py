import torch
from fairscale.nn import Pipe
from torch import nn


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.root = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x), (self.root(x) * 0.0).sqrt()


def test_parameters_of_an_output_without_gradient_get_none():
    heads, x = Heads(), torch.randn(7, 5)
    pipe = Pipe(nn.Sequential(heads), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
    loss = pipe(x)[0].sum()
    del pipe  # at exit it would wait for workers that are gone
    loss.backward()
    assert heads.root.weight.grad is None
