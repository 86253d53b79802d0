# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_that_is_an_output_stays_trained(self):
        linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
        grads = [torch.randn(3, 5), torch.randn(7, 3)]

        def forward():
            return [linear.weight, torch.tanh(linear(x))]

        (expected,) = torch.autograd.grad(forward(), linear.weight, grads)
        _, groups = stage_backward_input(forward(), grads, [x], linear.parameters())
        self.assertTrue(linear.weight.requires_grad)
        stage_backward_weight(linear.parameters(), groups)
        self.assertEqual(linear.weight.grad, expected)


if __name__ == "__main__":
    run_tests()
