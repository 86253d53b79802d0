import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_input, stage_backward_weight
from torch import nn


def test_parameter_that_joins_the_groups_of_two_others():
    torch.manual_seed(0)
    left, right, both = weights = [nn.Parameter(torch.randn(5)) for _ in range(3)]
    x, grad = torch.randn(7, 5, requires_grad=True), torch.ones(7, 5)

    def forward():
        return torch.tanh(x * (left * both)) * torch.sigmoid(x * (right * both))

    expected = torch.autograd.grad(forward(), weights, grad)
    result = stage_backward_input([forward()], [grad], [x], iter(weights))
    stage_backward_weight(iter(weights), result.param_groups)
    assert all(weight.grad is not None for weight in weights)
    torch.testing.assert_close([weight.grad for weight in weights], list(expected))
