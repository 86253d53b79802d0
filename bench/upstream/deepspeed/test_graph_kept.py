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


def test_the_graph_of_every_output_is_freed():
    engine = second_of_three_stages([torch.nn.Linear(5, 3), lambda y: (y.exp(), y.exp())])
    first = engine.pipe_buffers["outputs"][0][0].grad_fn
    engine.grad_layer = (torch.ones(7, 3), torch.ones(7, 3))
    engine._exec_backward_pass(0)
    with pytest.raises(RuntimeError, match="freed"):
        _ = first._saved_result
