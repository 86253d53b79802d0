# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_evaluation_leaves_sharded_grads(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        module, x, target = nn.Linear(3, 3), torch.randn(4, 3), torch.randn(4, 3)
        fully_shard(module, mesh=init_device_mesh("cpu", (1,)))
        stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        options = {"loss_fn": nn.functional.mse_loss, "scale_grads": False}
        schedule = ScheduleGPipe(stage, n_microbatches=2, **options)
        schedule.step(x, target=target)
        expected = module.weight.grad.full_tensor() * 2
        schedule.eval(x, target=target, losses=[])
        schedule.step(x, target=target)
        self.assertEqual(module.weight.grad.full_tensor(), expected)


if __name__ == "__main__":
    run_tests()
