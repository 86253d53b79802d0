# Owner(s): ["oncall: distributed"]
import torch
from torch import nn
from torch.autograd.graph import get_gradient_edge
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests


class StageBackwardTests(TestCase):
    def test_gradient_edge_of_a_weight_that_is_an_output(self):
        linear, table = nn.Linear(5, 3), nn.Parameter(torch.randn(2, 11))
        weights = [*linear.parameters(), table]
        x = torch.randn(7, 5, requires_grad=True)
        grads = [torch.randn(7, 3), torch.randn(2, 11)]
        edges = [get_gradient_edge(linear(x)), get_gradient_edge(table)]
        _, groups = stage_backward_input(edges, grads, [x], iter(weights))
        stage_backward_weight(iter(weights), groups)
        self.assertEqual(table.grad, grads[1])


if __name__ == "__main__":
    run_tests()
