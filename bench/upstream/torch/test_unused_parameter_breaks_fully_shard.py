# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.distributed.fake_pg import FakeStore


class Gated(nn.Sequential):
    def forward(self, x, used):
        return self[0](x) + self[1](x) if used else self[0](x)


class FullyShardTest(TestCase):
    def test_reduces_what_another_rank_may_have_used(self):
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
        self.addCleanup(dist.destroy_process_group)
        module = Gated(nn.Linear(4, 4), nn.Linear(4, 4))
        fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
        module(torch.ones(1, 4), used=False).sum().backward()
        self.assertIsNotNone(module[1].weight.grad)


if __name__ == "__main__":
    run_tests()
