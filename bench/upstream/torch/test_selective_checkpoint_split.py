# Owner(s): ["oncall: distributed"]
from functools import partial

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


class StageBackwardTests(TestCase):
    def test_split_backward_of_selective_checkpoint(self):
        stage = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))
        x, grad, ops = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4), [torch.ops.aten.addmm.default]
        context_fn = partial(create_selective_checkpoint_contexts, ops)
        (expected,) = torch.autograd.grad(stage(x), stage[0].weight, grad)
        output = checkpoint(stage, x, use_reentrant=False, context_fn=context_fn)
        _, groups = stage_backward_input([output], [grad], [x], stage.parameters())
        stage_backward_weight(stage.parameters(), groups)
        self.assertEqual(stage[0].weight.grad, expected)


if __name__ == "__main__":
    run_tests()
