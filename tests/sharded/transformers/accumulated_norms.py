"""transformers 5.24.0: a second backward sums the gradients of head norms over the ranks again.

The style ``replicated_with_grad_allreduce`` sums ``param.grad`` after each backward, and this has the sums of those
before. The model on one process is the same one without a plan.

torchrun --standalone --nproc-per-node 2 accumulated_norms.py
"""

import sys
import tempfile

import torch
import torch.distributed as dist
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.distributed import DistributedConfig

dist.init_process_group("gloo")
config = Qwen3MoeConfig(
    vocab_size=32, hidden_size=16, intermediate_size=32, moe_intermediate_size=8, num_hidden_layers=1,
    num_attention_heads=8, num_key_value_heads=4, head_dim=4, max_position_embeddings=8, num_experts=4,
    num_experts_per_tok=2, initializer_range=0.2,
)  # fmt: skip
torch.manual_seed(3)
tokens = torch.randint(32, (2, 2, 8))
whole = Qwen3MoeForCausalLM(config)
with tempfile.TemporaryDirectory() as folder:
    shared = [folder]
    dist.broadcast_object_list(shared, 0)
    if dist.get_rank() == 0:
        whole.save_pretrained(shared[0])
    dist.barrier()
    divided = Qwen3MoeForCausalLM.from_pretrained(
        shared[0], distributed_config=DistributedConfig(tp_size=dist.get_world_size())
    )
    dist.barrier()
wrong = 0
for backwards in (1, 2):
    found = []
    for model in (whole, divided):
        model.zero_grad()
        for batch in tokens[:backwards]:
            model(batch, labels=batch).loss.backward()
        found.append(model.model.layers[0].self_attn.q_norm.weight.grad.clone())
    right, got = found
    wrong += int((right - got).abs().max() > 1e-5)
    sys.stdout.write(
        f"rank {dist.get_rank()}, {backwards} backward: expected q_norm gradient {right.tolist()}, got {got.tolist()}\n"
    )
dist.destroy_process_group()
sys.exit(int(wrong > 0))
