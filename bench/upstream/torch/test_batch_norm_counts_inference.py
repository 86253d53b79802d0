# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_inferring_metadata_leaves_batch_norm_alone(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        modules = [nn.BatchNorm1d(3), nn.BatchNorm1d(3)]
        x, target = torch.randn(8, 3), torch.randn(8, 3)
        stages = [PipelineStage(one, i, 2, torch.device("cpu")) for i, one in enumerate(modules)]
        schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        schedule.step(x, target=target)
        for module in modules:
            self.assertEqual(module.num_batches_tracked, 2)


if __name__ == "__main__":
    run_tests()
