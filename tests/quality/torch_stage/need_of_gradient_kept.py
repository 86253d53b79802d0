"""PipelineStage takes from its example which inputs need a gradient: one that needs none later gets one all the same.

A frozen tower sends activations without a gradient in some micro-batches; the stage computes one, and sends it back.
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
stage = PipelineStage(nn.Linear(5, 3), 1, 3, torch.device("cpu"), input_args=(x,), output_args=(output,))
stage.has_backward = True
stage._inference_mode = InferenceMode.STATIC
stage._prepare_forward_infra(2, (x,), has_backward=True)
stage._prepare_backward_infra(2)
returned = []
for mb, received in enumerate((x, torch.randn(7, 5))):
    stage.set_local_fwd_input((received,), mb)
    stage.forward_one_chunk(mb, ())
    stage.set_local_bwd_input((grad,), mb)
    stage.backward_one_chunk(mb, full_backward=True)
    returned.append(stage.get_local_bwd_output(mb)[0] is not None)
dist.destroy_process_group()
print("expected: an input gradient of micro-batch 0 alone, [True, False]")
print(f"got: {returned}")
sys.exit(int(returned != [True, False]))
