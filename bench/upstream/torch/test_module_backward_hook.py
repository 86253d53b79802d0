# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_full_backward_hook_on_the_last_module(self):
        linear, called = nn.Linear(5, 3), []
        linear.register_full_backward_hook(lambda *_: called.append("hook"))
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
        (expected,) = torch.autograd.grad(linear(x), x, grad)
        (found,), _ = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
        self.assertEqual(found, expected)


if __name__ == "__main__":
    run_tests()
