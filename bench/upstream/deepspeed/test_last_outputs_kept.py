import os
import weakref

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0")
import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch import nn

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes


def test_outputs_of_the_last_stage_are_gone_after_its_backward():
    deepspeed.init_distributed("gloo", False, rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    model = PipelineModule([nn.Linear(5, 3)], num_stages=1, loss_fn=nn.functional.mse_loss)
    options = {"optimizer": torch.optim.SGD(model.parameters()), "config": {"train_batch_size": 1}}
    engine = deepspeed.initialize(model=model, **options)[0]
    engine._compute_loss, engine.fwd_outputs = True, []
    engine.total_loss = engine.total_additional_losses = None
    engine._reserve_pipe_buffers(1)
    engine.pipe_buffers["inputs"][0] = torch.randn(7, 5, requires_grad=True)
    engine.pipe_buffers["labels"][0] = torch.randn(7, 3)
    engine._exec_forward_pass(0)
    alive = weakref.ref(engine.pipe_buffers["outputs"][0])
    engine._exec_backward_pass(0)
    assert alive() is None
