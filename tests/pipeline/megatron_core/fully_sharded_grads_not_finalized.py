"""finalize_model_grads raises for a model in TorchFullyShardedDataParallel, so no step of it can end.

It calls ``finish_grad_sync(force_all_reduce=...)`` on each model chunk. The wrapper has the method of its base class,
which accepts no argument. Only the other wrappers accept it.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys
import tempfile
from types import SimpleNamespace
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import (
    TorchFullyShardedDataParallel,
    TorchFullyShardedDataParallelConfig,
    finalize_model_grads,
    torch_fully_sharded_data_parallel,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.distributed.device_mesh import DeviceMesh


def on_cpu(group: dist.ProcessGroup, _: str) -> DeviceMesh:
    """Return a mesh of the CPU in place of CUDA's."""
    return DeviceMesh.from_group(group, "cpu")


with tempfile.TemporaryDirectory() as folder:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
    with mock.patch.object(torch_fully_sharded_data_parallel, "DeviceMesh", SimpleNamespace(from_group=on_cpu)):
        model = TorchFullyShardedDataParallel(config, TorchFullyShardedDataParallelConfig(), torch.nn.Linear(4, 4))
    model(torch.ones(1, 4)).sum().backward()
    raised = ""
    try:
        finalize_model_grads([model])
    except TypeError as error:
        raised = str(error)
    dist.destroy_process_group()
print("expected finalize_model_grads to end a step")
print(f"got {raised or 'the end of the step'}")
sys.exit(bool(raised))
