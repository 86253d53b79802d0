# Owner(s): ["oncall: distributed"]
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, SequenceParallel, parallelize_module
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.distributed.fake_pg import FakeStore


class SequenceParallelTest(TestCase):
    def test_frozen_norm_stays_frozen(self):
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        mesh = init_device_mesh("cpu", (1,))
        module = nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 3)).requires_grad_(False)
        plan = {"0": SequenceParallel(sequence_dim=0), "1": ColwiseParallel()}
        parallelize_module(module, mesh, plan)
        self.assertEqual([n for n, p in module.named_parameters() if p.requires_grad], [])


if __name__ == "__main__":
    run_tests()
