# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_input_grad_may_be_changed_before_weight_backward(self):
        bare, x = nn.Parameter(torch.randn(7, 3)), torch.randn(7, 3, requires_grad=True)
        grad = torch.randn(7, 3)
        expected = grad.clone()
        (found,), groups = stage_backward_input([x + bare], [grad], [x], iter([bare]))
        found.mul_(0.5)  # what was returned is the caller's
        stage_backward_weight(iter([bare]), groups)
        self.assertEqual(bare.grad, expected)


if __name__ == "__main__":
    run_tests()
