# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_post_accumulate_grad_hooks_fire(self):
        linear, fired = nn.Linear(5, 3), []
        for name, weight in linear.named_parameters():
            weight.register_post_accumulate_grad_hook(lambda _, name=name: fired.append(name))
        x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
        _, groups = stage_backward_input([linear(x)], [grad], [x], linear.parameters())
        stage_backward_weight(linear.parameters(), groups)
        self.assertEqual(sorted(fired), ["bias", "weight"])


if __name__ == "__main__":
    run_tests()
