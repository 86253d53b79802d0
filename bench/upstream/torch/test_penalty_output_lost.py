# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_that_also_reaches_another_output(self):
        linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
        grads = [torch.randn(7, 3), torch.randn(5)]

        def forward():
            return [torch.tanh(linear(x)), linear.weight.square().sum(dim=0)]

        (expected,) = torch.autograd.grad(forward(), linear.weight, grads)
        _, groups = stage_backward_input(forward(), grads, [x], linear.parameters())
        stage_backward_weight(linear.parameters(), groups)
        self.assertEqual(linear.weight.grad, expected)


if __name__ == "__main__":
    run_tests()
