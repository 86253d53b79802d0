# Owner(s): ["oncall: distributed"]
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.testing._internal.common_utils import TestCase, run_tests
from torch.testing._internal.distributed.fake_pg import FakeStore


class ScheduleTest(TestCase):
    @mock.patch.object(dist, "recv", lambda vote, **_: vote.fill_(1))  # the stage before is static too
    def test_a_hook_on_what_is_received_fires_once_for_each_microbatch(self):
        dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
        self.addCleanup(dist.destroy_process_group)
        linear, fired, x = nn.Linear(3, 3), [], torch.randn(2, 3, requires_grad=True)
        linear.register_forward_pre_hook(lambda _, args: args[0].register_hook(fired.append) and None)
        stage = PipelineStage(linear, 1, 2, torch.device("cpu"), input_args=x, output_args=x)
        schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
        for _ in range(2):
            fired.clear()
            schedule.step(target=torch.randn(4, 3))
            self.assertEqual(len(fired), 2)


if __name__ == "__main__":
    run_tests()
