# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_that_joins_the_groups_of_two_others(self):
        first, second, shared = (nn.Parameter(torch.randn(5)) for _ in range(3))
        weights = [first, second, shared]
        x, y = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5, requires_grad=True)
        grad = torch.randn(7, 5)

        def forward():
            return torch.tanh(x + (first + shared)) * torch.sigmoid(y + (second + shared))

        (expected,) = torch.autograd.grad(forward(), shared, grad)
        _, groups = stage_backward_input([forward()], [grad], [x, y], iter(weights))
        stage_backward_weight(iter(weights), groups)
        self.assertEqual(shared.grad, expected)


if __name__ == "__main__":
    run_tests()
