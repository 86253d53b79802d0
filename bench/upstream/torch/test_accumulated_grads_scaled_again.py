# Owner(s): ["oncall: distributed"]
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_grads_of_two_steps_are_scaled_once(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        module, loss_fn = nn.Linear(3, 3), nn.functional.mse_loss
        x, target = torch.randn(4, 3), torch.randn(4, 3)
        plain = copy.deepcopy(module)
        for _ in range(2):
            loss_fn(plain(x), target).backward()
        stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=loss_fn, scale_grads=True)
        for _ in range(2):
            schedule.step(x, target=target)
        self.assertEqual(module.weight.grad, plain.weight.grad)


if __name__ == "__main__":
    run_tests()
