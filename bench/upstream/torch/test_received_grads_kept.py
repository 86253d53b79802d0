# Owner(s): ["oncall: distributed"]
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode
from torch.testing._internal.common_utils import TestCase, run_tests


class ScheduleTest(TestCase):
    def test_input_grads_are_gone_after_split_backward(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        x, y = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3, requires_grad=True)
        stage = PipelineStage(nn.Linear(5, 3), 1, 3, torch.device("cpu"), x, y)
        stage.has_backward, stage._inference_mode = True, InferenceMode.STATIC
        stage._prepare_forward_infra(1, (x,), has_backward=True)
        stage._prepare_backward_infra(1)
        stage.set_local_fwd_input((x,), 0)
        stage.forward_one_chunk(0, ())
        stage.set_local_bwd_input((torch.randn(7, 3),), 0)
        stage.backward_one_chunk(0, full_backward=False)
        stage.get_local_bwd_output(0)  # sent
        stage.backward_weight_one_chunk(0)
        buffers = [infos[0].buffer for infos in stage.args_recv_info.values()]
        self.assertFalse(any(one is not None and one.grad is not None for one in buffers))


if __name__ == "__main__":
    run_tests()
