# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_frozen_between_input_and_weight_backward(self):
        stage = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 3))
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
        (expected,) = torch.autograd.grad(stage(x), stage[1].weight, grad)
        _, groups = stage_backward_input([stage(x)], [grad], [x], stage.parameters())
        stage[0].weight.requires_grad_(False)
        stage_backward_weight(stage.parameters(), groups)
        self.assertIsNone(stage[0].weight.grad)
        self.assertEqual(stage[1].weight.grad, expected)


if __name__ == "__main__":
    run_tests()
