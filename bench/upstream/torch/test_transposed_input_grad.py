# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_input_grad_is_contiguous_as_from_full_backward(self):
        norm = nn.LayerNorm(3)
        x, grad = torch.randn(2, 3, 5, requires_grad=True), torch.randn(2, 5, 3)

        def forward():
            return [torch.tanh(norm(x.transpose(1, 2)))]

        (full,) = stage_backward(forward(), [grad], [x])
        (split,), _ = stage_backward_input(forward(), [grad], [x], norm.parameters())
        self.assertTrue(full.is_contiguous())
        self.assertTrue(split.is_contiguous())


if __name__ == "__main__":
    run_tests()
