# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_that_only_an_auxiliary_output_uses(self):
        linear, table = nn.Linear(5, 3), nn.Parameter(torch.randn(2, 11))
        weights = [*linear.parameters(), table]
        x = torch.randn(7, 5, requires_grad=True)
        grads = [torch.randn(7, 3), torch.randn(11)]

        def forward():
            return [torch.tanh(linear(x)), table.square().sum(dim=0)]

        (expected,) = torch.autograd.grad(forward(), table, grads)
        _, groups = stage_backward_input(forward(), grads, [x], iter(weights))
        stage_backward_weight(iter(weights), groups)
        self.assertEqual(table.grad, expected)


if __name__ == "__main__":
    run_tests()
