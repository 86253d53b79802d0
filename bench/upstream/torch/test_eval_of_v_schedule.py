# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleZBVZeroBubble
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_v_schedule_evaluates(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        modules, loss_fn, losses = [nn.Linear(3, 3), nn.Linear(3, 3)], nn.functional.mse_loss, []
        x, target = torch.randn(4, 3), torch.randn(4, 3)
        expected = loss_fn(modules[1](modules[0](x)), target)
        stages = [PipelineStage(one, i, 2, torch.device("cpu")) for i, one in enumerate(modules)]
        schedule = ScheduleZBVZeroBubble(stages, n_microbatches=2, loss_fn=loss_fn)
        schedule.eval(x, target=target, losses=losses)
        self.assertEqual(sum(losses) / 2, expected)


if __name__ == "__main__":
    run_tests()
