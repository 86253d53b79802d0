# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_one_tensor_as_two_inputs(self):
        linear = nn.Linear(5, 3)
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
        (expected,) = torch.autograd.grad(linear(x) * linear(x), x, grad)
        output = linear(x) * linear(x)
        found, _ = stage_backward_input([output], [grad], [x, x], linear.parameters())
        for input_grad in found:
            self.assertEqual(input_grad, expected)


if __name__ == "__main__":
    run_tests()
