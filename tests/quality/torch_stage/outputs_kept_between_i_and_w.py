"""PipelineStage holds a stage's outputs from I until W, though W of any but the first stage does not use them.

"TODO: we dont need to save this" stands above the line that does. A schedule that defers W holds them all.
"""

# ruff: noqa: T201 (a script: printing is what it is for; a schedule prepares a stage in the same private way)

import gc
import sys
import weakref

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
stage._prepare_forward_infra(1, (x,), has_backward=True)
stage._prepare_backward_infra(1)
stage.set_local_fwd_input((x,), 0)
output = stage.forward_one_chunk(0, ())
alive = weakref.ref(output)
stage.set_local_bwd_input((grad,), 0)
stage.backward_one_chunk(0, full_backward=False)
del output
gc.collect()
dist.destroy_process_group()
print("expected: the output is gone after I")
print(f"got: {'gone' if alive() is None else 'it is alive until W'}")
sys.exit(int(alive() is not None))
