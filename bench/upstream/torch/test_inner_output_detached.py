# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_output_from_which_another_output_is_computed(self):
        trunk, head = nn.Linear(5, 3), nn.Linear(3, 2)
        weights = [*trunk.parameters(), *head.parameters()]
        x = torch.randn(7, 5, requires_grad=True)
        grads = [torch.randn(7, 2), torch.randn(7, 3)]

        def forward():
            hidden = torch.tanh(trunk(x))
            return [head(hidden), hidden]

        (expected,) = torch.autograd.grad(forward(), head.weight, grads)
        _, groups = stage_backward_input(forward(), grads, [x], iter(weights))
        stage_backward_weight(iter(weights), groups)
        self.assertEqual(head.weight.grad, expected)


if __name__ == "__main__":
    run_tests()
