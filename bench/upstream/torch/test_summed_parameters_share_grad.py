# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weights_of_one_sum_share_no_grad(self):
        linear = nn.Linear(5, 3)
        a, b = nn.Parameter(torch.randn(7, 3)), nn.Parameter(torch.randn(7, 3))
        weights, expected = [*linear.parameters(), a, b], torch.zeros(7, 3)
        for _ in range(2):
            x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
            expected += grad
            output = torch.tanh(linear(x)) + a + b
            _, groups = stage_backward_input([output], [grad], [x], iter(weights))
            stage_backward_weight(iter(weights), groups)
        self.assertEqual(a.grad, expected)
        self.assertEqual(b.grad, expected)


if __name__ == "__main__":
    run_tests()
