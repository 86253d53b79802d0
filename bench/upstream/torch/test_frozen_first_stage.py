# Owner(s): ["oncall: distributed"]
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_zero_bubble_behind_a_frozen_stage(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        modules, loss_fn = [nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 3)], nn.functional.mse_loss
        x, target = torch.randn(4, 3), torch.randn(4, 3)
        plain = copy.deepcopy(modules)
        loss_fn(plain[1](plain[0](x)), target).backward()
        stages = [PipelineStage(one, i, 2, torch.device("cpu")) for i, one in enumerate(modules)]
        schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=2, loss_fn=loss_fn)
        schedule.step(x, target=target)
        self.assertEqual(modules[1].weight.grad, plain[1].weight.grad)


if __name__ == "__main__":
    run_tests()
