"""Megatron-core 0.16.1: a mean over tokens divides by each rank's own number (Megatron-LM 7452, number 9).

torchrun --standalone --nproc-per-node 2 masked_loss.py
"""

import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.pipeline_parallel.schedules import forward_step_calc_loss
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
parallel_state.initialize_model_parallel(context_parallel_size=ranks)
torch.cuda.current_device = lambda: torch.device("cpu")
config = TransformerConfig(
    num_layers=1, hidden_size=4, num_attention_heads=1, context_parallel_size=ranks, use_cpu_initialization=True,
)  # fmt: skip


class Weight(MegatronModule):
    """The losses of all tokens are this weight times their values."""

    def __init__(self) -> None:
        """Create the weight."""
        super().__init__(config)
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return the loss of each token."""
        return self.weight * values


values, counts = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([1, 1, 1, 0])
right = (values * counts).sum() / counts.sum()
model = DistributedDataParallel(config, DistributedDataParallelConfig(), Weight())
losses, own = model(values.chunk(ranks)[rank]), counts.chunk(ranks)[rank]
loss, _ = forward_step_calc_loss(
    SimpleNamespace(), losses, lambda _: ((losses * own).sum(), own.sum().int(), {}), config, vp_stage=None,
    collect_non_loss_data=False, num_microbatches=1, forward_data_store=[],
)  # fmt: skip
loss.backward()
finalize_model_grads([model])
got = model.module.weight.main_grad
sys.stdout.write(f"rank {rank}: expected a gradient of {right:.4f}, the mean over the three tokens; got {got:.4f}\n")
dist.destroy_process_group()
sys.exit(int(abs(got - right) > 1e-6))
