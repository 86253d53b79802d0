# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_output_that_is_a_view(self):
        linear, x = nn.Linear(5, 6), torch.randn(7, 5, requires_grad=True)
        grad = torch.randn(7, 3, 2)

        def forward():
            return torch.tanh(linear(x)).view(7, 3, 2)

        (expected,) = torch.autograd.grad(forward(), x, grad)
        (found,), _ = stage_backward_input([forward()], [grad], [x], linear.parameters())
        self.assertEqual(found, expected)


if __name__ == "__main__":
    run_tests()
