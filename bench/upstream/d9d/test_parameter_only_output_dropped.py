import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_input, stage_backward_weight
from torch import nn


def test_penalty_on_a_weight_beside_the_result():
    torch.manual_seed(0)
    linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
    grads = [torch.ones(7, 3), torch.ones(3)]

    def forward():
        return [linear(x), linear.weight.square().sum(1)]

    (expected,) = torch.autograd.grad(forward(), linear.weight, grads)
    result = stage_backward_input(forward(), grads, [x], linear.parameters())
    stage_backward_weight(linear.parameters(), result.param_groups)
    torch.testing.assert_close(linear.weight.grad, expected)
