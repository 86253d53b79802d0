# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_split_backward_of_a_stage_compiled_in_place(self):
        class Stage(nn.Linear):
            def forward(self, x):
                return torch.tanh(super().forward(x)).square()

        stage, x, grad = Stage(3, 3), torch.ones(4, 3, requires_grad=True), torch.randn(4, 3)
        stage.compile(backend="aot_eager")
        (expected,) = torch.autograd.grad(stage(x), stage.weight, grad)
        _, groups = stage_backward_input([stage(x)], [grad], [x], stage.parameters())
        stage_backward_weight(stage.parameters(), groups)
        self.assertEqual(stage.weight.grad, expected)


if __name__ == "__main__":
    run_tests()
