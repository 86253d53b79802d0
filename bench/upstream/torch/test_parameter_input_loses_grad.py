# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_full_backward_keeps_the_grad_of_a_weight_that_is_an_input(self):
        weight, expected = nn.Parameter(torch.randn(3, 5)), torch.zeros(3, 5)
        for _ in range(2):
            x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
            expected += torch.autograd.grad(x @ weight.t(), weight, grad)[0]
            stage_backward((x @ weight.t(),), (grad,), [weight, x])
        self.assertEqual(weight.grad, expected)


if __name__ == "__main__":
    run_tests()
