import os

os.environ.update(DS_ACCELERATOR="cpu", LOCAL_RANK="0")
import deepspeed
import torch
from deepspeed.pipe import PipelineModule
from torch import nn

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # it would be compiled, for minutes


def test_a_model_with_a_transposed_weight():
    layer = nn.Linear(5, 3)
    layer.weight = nn.Parameter(torch.randn(5, 3).t())
    deepspeed.init_distributed("gloo", False, rank=0, world_size=1, init_method="tcp://127.0.0.1:0")
    model = PipelineModule([layer], num_stages=1)
    options = {"optimizer": torch.optim.SGD(model.parameters()), "config": {"train_batch_size": 1}}
    engine = deepspeed.initialize(model=model, **options)[0]
    assert engine.module is model
