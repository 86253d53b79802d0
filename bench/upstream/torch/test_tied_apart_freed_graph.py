# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_at_two_depths(self):
        outer, between = nn.Linear(5, 5), nn.Linear(5, 5)
        weights = [*outer.parameters(), *between.parameters()]
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 5)

        def forward():
            return outer(torch.tanh(between(torch.tanh(outer(x)))))

        (expected,) = torch.autograd.grad(forward(), outer.weight, grad)
        _, groups = stage_backward_input([forward()], [grad], [x], iter(weights))
        stage_backward_weight(iter(weights), groups)
        self.assertEqual(outer.weight.grad, expected)


if __name__ == "__main__":
    run_tests()
