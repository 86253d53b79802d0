# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_input_of_two_microbatches_keeps_what_was_returned(self):
        linear = nn.Linear(5, 3)
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
        (expected,) = torch.autograd.grad(linear(x), x, grad)
        (found,), _ = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
        stage_backward_input([linear(x)], [grad], [x], linear.parameters())
        self.assertEqual(found, expected)


if __name__ == "__main__":
    run_tests()
