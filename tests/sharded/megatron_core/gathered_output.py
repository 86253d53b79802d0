"""Megatron-core 0.16.1: GPTModel(parallel_output=False) sums each word once per rank (Megatron-LM 7452, number 2).

torchrun --standalone --nproc-per-node 2 gathered_output.py
"""

import contextlib
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.transformer.transformer_config import TransformerConfig

dist.init_process_group("gloo")
ranks = dist.get_world_size()
parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks)
torch.cuda.current_device = lambda: torch.device("cpu")
tensor_parallel.random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
config = TransformerConfig(
    num_layers=1, hidden_size=16, num_attention_heads=4, tensor_model_parallel_size=ranks, use_cpu_initialization=True,
    hidden_dropout=0.0, attention_dropout=0.0, bias_activation_fusion=False, masked_softmax_fusion=False,
)  # fmt: skip
torch.manual_seed(3)
tokens, labels = torch.randint(16, (2, 2, 8))
places, hidden = torch.arange(8).expand(2, 8), torch.ones(1, 1, 8, 8, dtype=torch.bool).triu(1)
losses, norms = {}, {}
for parallel in (True, False):
    torch.manual_seed(3)
    model = GPTModel(config, get_gpt_layer_local_spec(), 16, 8, parallel_output=parallel)
    loss = model(tokens, places, hidden, labels=labels).mean()
    loss.backward()
    losses[parallel], norms[parallel] = loss.item(), model.output_layer.weight.grad.norm().item()
sys.stdout.write(
    f"expected loss {losses[True]:.6f} and a head gradient of norm {norms[True]:.6f}, as with parallel_output=True\n"
)
sys.stdout.write(f"got {losses[False]:.6f} and {norms[False]:.6f}\n")
dist.destroy_process_group()
sys.exit(int(abs(losses[True] - losses[False]) > 1e-4))
