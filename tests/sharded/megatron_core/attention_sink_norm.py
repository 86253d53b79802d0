"""Megatron-core 0.16.1: the clipping norm has rank 0's attention sinks alone (Megatron-LM 7452, number 8).

torchrun --standalone --nproc-per-node 2 attention_sink_norm.py
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
torch.cuda.current_device = lambda: torch.device("cpu")
config = TransformerConfig(
    num_layers=1, hidden_size=16, num_attention_heads=4, tensor_model_parallel_size=ranks, softmax_type="learnable",
    use_cpu_initialization=True, masked_softmax_fusion=False,
)  # fmt: skip
attention = DotProductAttention(config, 1, AttnMaskType.causal, "self")
attention.softmax_offset.grad = torch.tensor([1.0, 2.0, 3.0, 4.0]).chunk(ranks)[rank].clone()

# As MegatronOptimizer.get_main_grads_for_grad_norm filters, and get_grad_norm_fp32 sums over the model-parallel group.
counted = [
    one.grad for one in attention.parameters() if tensor_parallel.param_is_not_tensor_parallel_duplicate(one)
]  # fmt: skip
square = torch.tensor(sum((one.square().sum().item() for one in counted), 0.0))
dist.all_reduce(square, group=parallel_state.get_model_parallel_group())
right = 30.0**0.5
print(
    f"rank {rank}: expected a norm of {right:.6f} for sinks with gradients 1, 2, 3, 4; got {square.sqrt().item():.6f}"
)
dist.destroy_process_group()
sys.exit(int(abs(square.item() ** 0.5 - right) > 1e-4))
