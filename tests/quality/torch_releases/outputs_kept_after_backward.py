"""A stage that is not the last keeps every output until the next step, long after it was sent and its backward ran.

Nobody asks for them: the last stage alone has outputs that a step returns. Memory grows with the micro-batches.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import gc
import inspect
import sys
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, _utils

MICROBATCHES = 3
torch.manual_seed(0)
alone = not dist.is_initialized()
if alone:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
module, x, grad = nn.Linear(5, 3), torch.randn(7, 5), torch.randn(7, 3)
stage = PipelineStage(module, 0, 2, torch.device("cpu"), input_args=(x,), output_args=module(x))
stage.has_backward = True
if hasattr(_utils, "InferenceMode"):  # what a schedule finds out, from 2.11 on
    stage._inference_mode = _utils.InferenceMode.STATIC
options = {"has_backward": True} if "has_backward" in inspect.signature(stage._prepare_forward_infra).parameters else {}
stage._prepare_forward_infra(MICROBATCHES, (x,), None, **options)
stage._prepare_backward_infra(MICROBATCHES)

outputs = []
gc.disable()
for mb in range(MICROBATCHES):
    output = stage.forward_one_chunk(mb, (x,), {})
    outputs.append(weakref.ref(output[0] if isinstance(output, tuple) else output))
    del output
    stage.set_local_bwd_input((grad,), mb)
    stage.backward_one_chunk(mb)
kept = sum(output() is not None for output in outputs)
if alone:
    dist.destroy_process_group()
gc.enable()
print("expected: 0 outputs alive after the last backward")
print(f"got: {kept} of {MICROBATCHES}")
sys.exit(1 if kept else 0)
