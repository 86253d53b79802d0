# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_input_that_needs_no_grad_in_one_microbatch_gets_none(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        x, y = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3, requires_grad=True)
        stage = PipelineStage(nn.Linear(5, 3), 1, 3, torch.device("cpu"), x, y)
        stage.has_backward, stage._inference_mode = True, InferenceMode.STATIC
        stage._prepare_forward_infra(1, (x,), has_backward=True)
        stage._prepare_backward_infra(1)
        stage.set_local_fwd_input((x.detach(),), 0)
        stage.forward_one_chunk(0, ())
        stage.set_local_bwd_input((torch.randn(7, 3),), 0)
        stage.backward_one_chunk(0)
        self.assertIsNone(stage.get_local_bwd_output(0)[0])


if __name__ == "__main__":
    run_tests()
