# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_surplus_output_grad_is_refused_as_by_full_backward(self):
        linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
        grads = [torch.randn(7, 3), torch.randn(7, 3)]
        with self.assertRaises((RuntimeError, ValueError)):
            stage_backward([linear(x)], grads, [x])
        with self.assertRaises((RuntimeError, ValueError)):
            stage_backward_input([linear(x)], grads, [x], linear.parameters())


if __name__ == "__main__":
    run_tests()
