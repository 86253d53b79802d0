# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.utils.checkpoint import checkpoint


class ScheduleTest(TestCase):
    def test_stage_with_reentrant_checkpoint(self):
        class Checkpointed(nn.Linear):
            def forward(self, x):
                return checkpoint(super().forward, x, use_reentrant=True)

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        modules, loss_fn = [nn.Linear(3, 3), Checkpointed(3, 3)], nn.functional.mse_loss
        x, target = torch.randn(4, 3), torch.randn(4, 3)
        stages = [PipelineStage(one, i, 2, torch.device("cpu")) for i, one in enumerate(modules)]
        schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=loss_fn)
        schedule.step(x, target=target)
        found = modules[1].weight.grad.clone()
        modules[1].zero_grad()
        loss_fn(modules[1](modules[0](x)), target).backward()
        self.assertEqual(found, modules[1].weight.grad)


if __name__ == "__main__":
    run_tests()
