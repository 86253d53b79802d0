# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_grad_with_hook_on_activation(self):
        linear = nn.Linear(5, 3)
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)

        def forward():
            hidden = linear(x)
            hidden.register_hook(lambda grad: grad * 0.5)
            return torch.tanh(hidden)

        (expected,) = torch.autograd.grad(forward(), linear.bias, grad)
        _, groups = stage_backward_input([forward()], [grad], [x], linear.parameters())
        stage_backward_weight(linear.parameters(), groups)
        self.assertEqual(linear.bias.grad, expected)


if __name__ == "__main__":
    run_tests()
