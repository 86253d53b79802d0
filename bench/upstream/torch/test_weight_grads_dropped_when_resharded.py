# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_zero_bubble_of_resharded_stages(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        modules, loss_fn = [nn.Sequential(nn.Linear(3, 3)) for _ in range(2)], nn.functional.mse_loss
        x, target = torch.randn(4, 3), torch.randn(4, 3)
        loss = loss_fn(modules[1](modules[0](x)), target)
        (expected,) = torch.autograd.grad(loss, modules[1][0].weight)
        for module in [*(module[0] for module in modules), *modules]:
            fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        stages = [PipelineStage(one, i, 2, torch.device("cpu")) for i, one in enumerate(modules)]
        ScheduleInterleavedZeroBubble(stages, n_microbatches=2, loss_fn=loss_fn).step(x, target=target)
        self.assertIsNotNone(modules[1][0].weight.grad)
        self.assertEqual(modules[1][0].weight.grad.full_tensor(), expected)


if __name__ == "__main__":
    run_tests()
