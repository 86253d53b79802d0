"""The second step of GPipe on DistributedDataParallel ends in an internal assertion of its reducer.

Metadata is inferred by a forward of the wrapped module outside ``no_sync``, whose backward never reaches the
parameters: the reducer waits for gradients from then on. It takes those of the first micro-batch, which ``no_sync``
was to keep from it, reduces them, and has each parameter twice where it orders its buckets anew.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
module = nn.Linear(3, 3)
x, target = torch.randn(4, 3), torch.randn(4, 3)

stage = PipelineStage(DistributedDataParallel(module), 0, 1, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
print("expected two steps without an error")
try:
    for _ in range(2):
        schedule.step(x, target=target)
except RuntimeError as error:
    print(f"got RuntimeError: {error.__cause__}")
    raise SystemExit(1) from None
# No destroy_process_group: a reducer that is left as the group's last owner joins gloo's threads with the GIL held, and
# one of them may wait for the GIL to let go of a tensor.
