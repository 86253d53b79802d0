# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_backward_returns_the_weight_grads(self):
        linear = nn.Linear(5, 3)
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
        expected = torch.autograd.grad(linear(x), list(linear.parameters()), grad)
        _, groups = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
        found = stage_backward_weight(linear.parameters(), groups)
        self.assertEqual(found, expected)


if __name__ == "__main__":
    run_tests()
