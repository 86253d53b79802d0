# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_penalty_returned_by_the_last_stage(self):
        class Last(nn.Linear):
            def forward(self, x):
                return super().forward(x), self.weight.square().sum(1)

        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        modules, x = [nn.Linear(5, 5), Last(5, 3)], torch.randn(4, 5)
        stages = [PipelineStage(one, i, 2, torch.device("cpu")) for i, one in enumerate(modules)]
        options = {"loss_fn": lambda outputs, _: outputs[0].mean() + outputs[1].square().mean()}
        ScheduleInterleavedZeroBubble(stages, n_microbatches=4, **options).step(x, target=x)
        found = modules[1].weight.grad.clone()
        modules[1].zero_grad()
        options["loss_fn"](modules[1](modules[0](x)), x).backward()
        self.assertEqual(found, modules[1].weight.grad)


if __name__ == "__main__":
    run_tests()
