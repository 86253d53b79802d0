"""A router counts the tokens of one micro-batch too many, and its bias for balance follows these counts.

Metadata is inferred by running each stage once more before the first step, in train mode and on the real module. The
first stage counts the tokens of its first micro-batch twice. Other stages count what uninitialised memory routes.
"""

# ruff: noqa: T201 (a script: printing what is expected and what is got is what it is for)

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import ScheduleGPipe

EXPERTS = 4


class Mixture(nn.Module):
    """One of four experts for each token, and a count of the tokens of each."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(3, EXPERTS, bias=False)
        self.experts = nn.ModuleList(nn.Linear(3, 3) for _ in range(EXPERTS))
        self.register_buffer("counts", torch.zeros(EXPERTS, dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return each token's output of the expert with the highest score, times that score."""
        weight, chosen = torch.softmax(self.gate(x), -1).max(-1)
        self.counts += chosen.bincount(minlength=EXPERTS)
        outputs = torch.stack([expert(x) for expert in self.experts], 1)
        return weight[:, None] * outputs[torch.arange(len(x)), chosen]


dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
torch.manual_seed(0)
mixture, x, target = Mixture(), torch.randn(8, 3), torch.randn(8, 3)
with torch.no_grad():
    expected = mixture.gate(x).argmax(-1).bincount(minlength=EXPERTS)

stage = PipelineStage(mixture, 0, 1, torch.device("cpu"))
ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss).step(x, target=target)
dist.destroy_process_group()
print(f"expected {expected.sum()} tokens, by expert {expected.tolist()}")
print(f"got      {mixture.counts.sum()} tokens, by expert {mixture.counts.tolist()}")
raise SystemExit(not torch.equal(mixture.counts, expected))
