# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_loss_of_several_elements_is_refused_as_by_full_backward(self):
        linear, x = nn.Linear(5, 3), torch.randn(7, 5, requires_grad=True)
        with self.assertRaises((RuntimeError, ValueError)):
            stage_backward(linear(x).square(), None, [x])
        with self.assertRaises((RuntimeError, ValueError)):
            stage_backward_input([linear(x).square()], None, [x], linear.parameters())


if __name__ == "__main__":
    run_tests()
