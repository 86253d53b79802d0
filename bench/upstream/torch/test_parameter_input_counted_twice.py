# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_that_is_also_an_input_is_counted_once(self):
        weight = nn.Parameter(torch.randn(3, 5))
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
        (expected,) = torch.autograd.grad(x @ weight.t(), weight, grad)
        inputs = [weight, x]
        _, groups = stage_backward_input([x @ weight.t()], [grad], inputs, iter([weight]))
        stage_backward_weight(iter([weight]), groups)
        self.assertEqual(weight.grad, expected)


if __name__ == "__main__":
    run_tests()
