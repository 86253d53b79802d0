# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_weight_returned_by_the_last_stage_stays_trained(self):
        class Last(nn.Linear):
            def forward(self, x):
                return super().forward(x), self.weight

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        modules, x = [nn.Linear(5, 5), Last(5, 3)], torch.randn(4, 5)
        stages = [PipelineStage(one, i, 2, torch.device("cpu")) for i, one in enumerate(modules)]
        options = {"loss_fn": lambda outputs, _: outputs[0].mean() + outputs[1].mean()}
        schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, **options)
        schedule.step(x, target=x, return_outputs=False)
        self.assertTrue(modules[1].weight.requires_grad)


if __name__ == "__main__":
    run_tests()
