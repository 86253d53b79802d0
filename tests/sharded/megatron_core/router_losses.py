"""Megatron-core 0.16.1: a router's auxiliary losses over a divided sequence (Megatron-LM 7452).

With a loss per token, the balance loss is multiplied by a rank's tokens instead of the sequence's. With padding, the
z-loss is a mean of the ranks' means. The router on one rank has the whole sequence.

torchrun --standalone --nproc-per-node 2 router_losses.py
"""

import sys
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.transformer_config import TransformerConfig

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.cuda.current_device = lambda: torch.device("cpu")
moe_utils.te_general_gemm = None
torch.manual_seed(3)
value, weight = torch.randn(8, 2, 16, dtype=torch.float64), torch.randn(4, 16, dtype=torch.float64) / 4
padding = torch.zeros(8, 2, dtype=torch.bool)
padding[5:] = True


def gradient(size: int, *, mask: bool, **given: Any) -> torch.Tensor:
    """Return the gradient of the router's weight on ``size`` ranks, from its auxiliary losses alone."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    config = TransformerConfig(
        num_layers=1, hidden_size=16, num_attention_heads=4, num_moe_experts=4, moe_router_topk=2,
        tensor_model_parallel_size=size, sequence_parallel=size > 1, add_bias_linear=False,
        use_cpu_initialization=True, params_dtype=torch.float64, **given,
    )  # fmt: skip
    router = TopKRouter(config, ProcessGroupCollection.use_mpu_process_groups(["tp", "cp", "tp_cp", "tp_dp_cp"]))
    router.set_layer_number(1)
    router.weight.data.copy_(weight)
    own = [one.chunk(size)[rank % size] for one in (value, padding)]
    (router(own[0], own[1] if mask else None)[0] * 0.0).sum().backward()
    if size > 1:  # as finalize_model_grads sums what each rank has for its positions alone
        dist.all_reduce(router.weight.grad)
    parallel_state.destroy_model_parallel()
    return router.weight.grad


wrong = 0
for what, mask, given in (
    ("balance loss per token", False, {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.1,
                                       "calculate_per_token_loss": True}),
    ("z-loss with padding", True, {"moe_router_load_balancing_type": "none", "moe_z_loss_coeff": 0.1}),
):  # fmt: skip
    right, got = gradient(1, mask=mask, **given), gradient(ranks, mask=mask, **given)
    wrong += int((right - got).abs().max() > 1e-9)
    if rank == 0:
        sys.stdout.write(
            f"{what}: expected a gradient of norm {right.norm():.6g}, as on one rank; got {got.norm():.6g}\n"
        )
dist.destroy_process_group()
sys.exit(int(wrong > 0))
