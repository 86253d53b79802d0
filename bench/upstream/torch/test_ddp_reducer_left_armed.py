# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.distributed.fake_pg import FakeStore


class ScheduleTest(TestCase):
    def test_two_steps_of_a_stage_under_ddp(self):
        def reduce(_, bucket):
            return torch.futures.collect_all([]).then(lambda _: bucket.buffer())

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        module, loss_fn = DistributedDataParallel(nn.Linear(3, 3)), nn.functional.mse_loss
        module.register_comm_hook(None, reduce)
        x, target = torch.randn(4, 3), torch.randn(4, 3)
        schedule = ScheduleGPipe(PipelineStage(module, 0, 1, torch.device("cpu")), 2, loss_fn)
        schedule.step(x, target=target)
        expected = module.module.weight.grad.clone()
        module.zero_grad()
        schedule.step(x, target=target)
        self.assertEqual(module.module.weight.grad, expected)


if __name__ == "__main__":
    run_tests()
