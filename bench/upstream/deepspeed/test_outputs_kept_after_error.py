import os

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0")
import deepspeed
import pytest
import torch
from deepspeed.pipe import PipelineModule

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes


def second_of_three_stages(layers):
    deepspeed.init_distributed("gloo", False, rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    model = PipelineModule(layers, num_stages=1)
    options = {"optimizer": torch.optim.SGD(model.parameters()), "config": {"train_batch_size": 1}}
    engine = deepspeed.initialize(model=model, **options)[0]
    engine.num_stages, engine.stage_id = 3, 1
    engine._reserve_pipe_buffers(1)
    engine.pipe_buffers["inputs"][0] = torch.randn(7, 5, requires_grad=True)
    engine._exec_forward_pass(0)
    return engine


def test_outputs_are_gone_after_a_backward_that_raises():
    engine = second_of_three_stages([torch.nn.Linear(5, 3)])
    engine.grad_layer = torch.ones(3, 7)
    with pytest.raises(RuntimeError, match="shape"):
        engine._exec_backward_pass(0)
    assert engine.pipe_buffers["outputs"][0] is None
