import torch
from torch import nn
from torchgpipe import GPipe


class Layer(nn.Linear):
    def forward(self, x):
        return self.weight, super().forward(x)


def test_layer_that_returns_a_parameter_first():
    torch.manual_seed(0)
    layer, x = Layer(5, 3), torch.randn(7, 5, requires_grad=True)
    weight, output = layer(x)
    (expected,) = torch.autograd.grad(weight.sum() + output.sum(), layer.weight)
    pipe = GPipe(nn.Sequential(layer), balance=[1], devices=["cpu"], chunks=1, checkpoint="always")
    weight, output = pipe(x)
    (weight.sum() + output.sum()).backward()
    torch.testing.assert_close(layer.weight.grad, expected)
