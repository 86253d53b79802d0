# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_grad_is_laid_out_like_the_weight(self):
        conv = nn.Conv2d(3, 5, 3)
        x = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
        x.requires_grad_()
        grad = torch.randn(2, 5, 4, 4)
        _, groups = stage_backward_input([conv(x)], [grad], [x], conv.parameters())
        stage_backward_weight(conv.parameters(), groups)
        self.assertEqual(conv.weight.grad.stride(), conv.weight.stride())


if __name__ == "__main__":
    run_tests()
