# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_grads_where_no_input_needs_a_grad(self):
        linear, x, grad = nn.Linear(5, 3), torch.randn(7, 5), torch.randn(7, 3)
        (expected,) = torch.autograd.grad(linear(x), linear.weight, grad)
        _, groups = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
        stage_backward_weight(linear.parameters(), groups)
        self.assertEqual(linear.weight.grad, expected)


if __name__ == "__main__":
    run_tests()
