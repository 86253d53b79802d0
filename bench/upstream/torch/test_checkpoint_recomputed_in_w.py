# Owner(s): ["oncall: distributed"]
import copy

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward, stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils.checkpoint import checkpoint


class StageBackwardTests(TestCase):
    def test_checkpoint_is_recomputed_as_often_as_by_full_backward(self):
        full = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh())
        split = copy.deepcopy(full)
        x, grad = torch.randn(6, 5, requires_grad=True), torch.randn(6, 7)
        stage_backward([checkpoint(full, x, use_reentrant=False)], [grad], [x])
        output = checkpoint(split, x, use_reentrant=False)
        _, groups = stage_backward_input([output], [grad], [x], split.parameters())
        stage_backward_weight(split.parameters(), groups)
        self.assertEqual(split[1].num_batches_tracked, full[1].num_batches_tracked)
        self.assertEqual(split[1].running_mean, full[1].running_mean)


if __name__ == "__main__":
    run_tests()
