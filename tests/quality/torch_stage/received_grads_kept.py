"""After a split backward PipelineStage keeps every micro-batch's input gradient, in .grad of its receive buffers.

After a full backward it keeps none. They go when the next step begins: a step holds one for every micro-batch.
"""

# ruff: noqa: T201 (a script: printing is what it is for; a schedule prepares a stage in the same private way)

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining._utils import InferenceMode

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
torch.manual_seed(0)
x, grad = torch.randn(7, 5, requires_grad=True), torch.randn(7, 3)
output = torch.randn(7, 3, requires_grad=True)
held = {}
for full in (True, False):
    stage = PipelineStage(nn.Linear(5, 3), 1, 3, torch.device("cpu"), input_args=(x,), output_args=(output,))
    stage.has_backward = True
    stage._inference_mode = InferenceMode.STATIC
    stage._prepare_forward_infra(50, (x,), has_backward=True)
    stage._prepare_backward_infra(50)
    for mb in range(50):
        stage.set_local_fwd_input((torch.randn(7, 5, requires_grad=True),), mb)
        stage.forward_one_chunk(mb, ())
        stage.set_local_bwd_input((grad,), mb)
        stage.backward_one_chunk(mb, full_backward=full)
        stage.get_local_bwd_output(mb)  # it is handed on, and nobody else holds it
        if not full:
            stage.backward_weight_one_chunk(mb)
    buffers = [infos[0].buffer for infos in stage.args_recv_info.values()]  # None on torch 2.15, which lets go of them
    held[full] = sum(buffer is not None and buffer.grad is not None for buffer in buffers)
dist.destroy_process_group()
print(f"expected: {held[True]} input gradients held after 50 micro-batches, as after full backwards")
print(f"got: {held[False]} held")
sys.exit(int(held[False] > held[True]))
