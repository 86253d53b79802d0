from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core import distributed as wrappers
from megatron.core import parallel_state
from megatron.core.distributed import torch_fully_sharded_data_parallel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.distributed.device_mesh import DeviceMesh


def test_finalize_model_grads_of_torch_fully_sharded_data_parallel(tmp_path, monkeypatch):
    on_cpu = SimpleNamespace(from_group=lambda group, _: DeviceMesh.from_group(group, "cpu"))
    monkeypatch.setattr(torch_fully_sharded_data_parallel, "DeviceMesh", on_cpu)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
        config = TransformerConfig(num_layers=1, hidden_size=4, num_attention_heads=1)
        settings = wrappers.TorchFullyShardedDataParallelConfig()
        model = wrappers.TorchFullyShardedDataParallel(config, settings, torch.nn.Linear(4, 4))
        model(torch.ones(1, 4)).sum().backward()
        wrappers.finalize_model_grads([model])
        torch.testing.assert_close(model.module.weight.grad.full_tensor(), torch.ones(4, 4))
    finally:
        parallel_state.destroy_model_parallel()
        dist.destroy_process_group()
