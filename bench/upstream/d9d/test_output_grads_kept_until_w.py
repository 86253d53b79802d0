import torch
from d9d.pipelining.infra.stage.splitgrad import stage_backward_input, stage_backward_weight
from torch import nn


def test_output_grad_may_be_overwritten_before_the_weight_backward():
    torch.manual_seed(0)
    linear, x, grad = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
    (expected,) = torch.autograd.grad(linear(x), linear.bias, grad)
    result = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
    grad.fill_(7.0)  # the gradient of the next microbatch is received there
    stage_backward_weight(linear.parameters(), result.param_groups)
    torch.testing.assert_close(linear.bias.grad, expected)
