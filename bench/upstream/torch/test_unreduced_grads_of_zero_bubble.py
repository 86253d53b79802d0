# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.distributed.fake_pg import FakeStore


class ScheduleTest(TestCase):
    def test_zero_bubble_reduces_grads_of_every_stage(self):
        def reduce(index, bucket):
            reduced.add(index)
            return torch.futures.collect_all([]).then(lambda _: bucket.buffer())

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        reduced, modules = set(), [DistributedDataParallel(nn.Linear(3, 3)) for _ in range(2)]
        for index, module in enumerate(modules):
            module.register_comm_hook(index, reduce)
        stages = [PipelineStage(one, i, 2, torch.device("cpu")) for i, one in enumerate(modules)]
        schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        schedule.step(torch.randn(4, 3), target=torch.randn(4, 3))
        self.assertEqual(reduced, {0, 1})


if __name__ == "__main__":
    run_tests()
