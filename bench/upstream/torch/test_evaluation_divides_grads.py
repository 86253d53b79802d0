# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_evaluation_leaves_grads(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        module, x, target = nn.Linear(3, 3), torch.randn(4, 3), torch.randn(4, 3)
        stage = PipelineStage(module, 0, 1, torch.device("cpu"))
        schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        schedule.step(x, target=target)
        expected = module.weight.grad.clone()
        schedule.eval(x, target=target, losses=[])
        self.assertEqual(module.weight.grad, expected)


if __name__ == "__main__":
    run_tests()
