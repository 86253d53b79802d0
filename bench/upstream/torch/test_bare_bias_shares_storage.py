# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_weight_grad_is_not_the_output_grad(self):
        linear, bare = nn.Linear(5, 3), nn.Parameter(torch.randn(7, 3))
        weights = [*linear.parameters(), bare]
        received = torch.randn(7, 3)
        kept = received.clone()
        for grad in (received, torch.randn(7, 3)):
            x = torch.randn(7, 5, requires_grad=True)
            output = torch.tanh(linear(x)) + bare
            _, groups = stage_backward_input([output], [grad], [x], iter(weights))
            stage_backward_weight(iter(weights), groups)
        self.assertEqual(received, kept)


if __name__ == "__main__":
    run_tests()
