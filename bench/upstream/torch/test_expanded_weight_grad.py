# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_grad_of_a_summed_weight_accumulates(self):
        linear, gain = nn.Linear(5, 3), nn.Parameter(torch.randn(7))
        weights = [*linear.parameters(), gain]
        expected = torch.zeros(7)
        for _ in range(2):
            x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
            expected += torch.autograd.grad(linear(x) * gain.sum(), gain, grad)[0]
            output = linear(x) * gain.sum()
            _, groups = stage_backward_input([output], [grad], [x], iter(weights))
            stage_backward_weight(iter(weights), groups)
        self.assertEqual(gain.grad, expected)


if __name__ == "__main__":
    run_tests()
