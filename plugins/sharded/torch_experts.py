"""Experts over ranks as torchtitan has them, by what torch ships: a parallel style, all-to-all and grouped products.

Rows of tokens are sorted by expert and go to the ranks of their experts. The experts' outputs come back the same way.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single, all_to_all_single_autograd
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.nn import functional as F

from .torch_styles import norm_of

WIDTH, INNER, EXPERTS, CHOSEN, TOKENS = 16, 32, 8, 2, 32


class _Experts(nn.Module):
    """Gated experts, each a slice of three parameters; the rows of tokens are sorted by expert."""

    def __init__(self, *, grouped: bool) -> None:
        super().__init__()
        self.grouped = grouped
        self.gate, self.up = (nn.Parameter(torch.randn(EXPERTS, WIDTH, INNER) / WIDTH**0.5) for _ in range(2))
        self.down = nn.Parameter(torch.randn(EXPERTS, INNER, WIDTH) / INNER**0.5)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        gate, up, down = (
            one.to_local() if isinstance(one, DTensor) else one for one in (self.gate, self.up, self.down)
        )
        if self.grouped:
            ends = counts.cumsum(0, dtype=torch.int32)
            inner = F.silu(F.grouped_mm(rows, gate, offs=ends)) * F.grouped_mm(rows, up, offs=ends)
            return F.grouped_mm(inner, down, offs=ends)
        parts = rows.split(counts.tolist())
        found = [(F.silu(own @ gate[i]) * (own @ up[i])) @ down[i] for i, own in enumerate(parts)]
        return torch.cat(found)


class ExpertParallel(ParallelStyle):
    """Each rank has some experts; rows go to them by all-to-all."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        return distribute_module(module, device_mesh, _divided, self._dispatched, self._combined)  # type: ignore[arg-type] # torch passes no kwargs

    def _dispatched(self, _: nn.Module, inputs: tuple[Tensor, Tensor], mesh: DeviceMesh) -> tuple[Tensor, Tensor]:
        """Send the rows, and sort what arrives by expert instead of by rank."""
        rows, counts = inputs
        arrived = all_to_all_single(counts, None, None, mesh.get_group()).view(mesh.size(), -1)
        self.sent, self.received = counts.view(mesh.size(), -1).sum(1).tolist(), arrived.sum(1).tolist()
        rows = all_to_all_single_autograd(rows, self.received, self.sent, mesh.get_group())
        of_expert = torch.arange(arrived.shape[1], device=rows.device).repeat(mesh.size())
        self.order = of_expert.repeat_interleave(arrived.flatten()).argsort(stable=True)
        return rows[self.order], arrived.sum(0)

    def _combined(self, _: nn.Module, outputs: Tensor, mesh: DeviceMesh) -> Tensor:
        """Send the outputs back to the ranks of their tokens."""
        back = torch.empty_like(outputs).index_copy(0, self.order, outputs)
        found: Tensor = all_to_all_single_autograd(back, self.sent, self.received, mesh.get_group())
        return found


def _divided(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
    """Divide the experts' parameters over the ranks."""
    for name, one in module.named_parameters(recurse=False):
        module.register_parameter(name, nn.Parameter(distribute_tensor(one, mesh, [Shard(0)])))


class _Layer(nn.Module):
    """A router, experts, and an expert for all tokens."""

    def __init__(self, *, grouped: bool, scored_before: bool) -> None:
        super().__init__()
        self.scored_before = scored_before
        self.router, self.shared = nn.Linear(WIDTH, EXPERTS, bias=False), nn.Linear(WIDTH, WIDTH)
        self.experts = _Experts(grouped=grouped)

    def forward(self, value: Tensor) -> Tensor:
        scores, chosen = self.router(value).softmax(-1).topk(CHOSEN, -1)
        order = chosen.flatten().argsort(stable=True)
        scores, tokens = scores.flatten()[order].unsqueeze(-1), order // CHOSEN
        counts = chosen.flatten().bincount(minlength=EXPERTS)
        rows = value[tokens] * scores if self.scored_before else value[tokens]
        found = self.experts(rows, counts)
        found = found if self.scored_before else found * scores
        result: Tensor = self.shared(value)
        return result.index_add(0, tokens, found)


class Experts:
    """Experts over ranks that each have other tokens and other experts."""

    name = "torch-experts"
    mesh = {"ep": (2, 4)}
    options = {
        "products": ("grouped", "one-by-one"),
        "scored_before": (False, True),
        "tokens": ("drawn", "alike"),
    }
    placements = dict.fromkeys(("router.weight", "shared.weight", "shared.bias"), Replicate())
    arg_placements = (Shard(0),)
    output_placements = (Shard(0),)

    def __init__(self, *, products: str = "grouped", scored_before: bool = False, tokens: str = "drawn") -> None:
        """Choose how experts multiply, where scores count, and whether all tokens choose the same experts."""
        self.products, self.scored_before, self.tokens = products, scored_before, tokens

    def whole(self) -> nn.Module:
        """Return the layer on one process; a grouped product has no float64."""
        return _Layer(grouped=False, scored_before=self.scored_before)

    def sharded(self, mesh: DeviceMesh) -> nn.Module:
        """Return the layer with this rank's experts."""
        layer = _Layer(grouped=self.products == "grouped", scored_before=self.scored_before)
        return parallelize_module(layer, mesh["ep"], {"experts": ExpertParallel()})

    def args(self, generator: torch.Generator) -> tuple[Tensor]:
        """Return hidden states of shape (tokens, width)."""
        value = torch.randn(TOKENS, WIDTH, generator=generator)
        return (value if self.tokens == "drawn" else value[:1] + 0.01 * value,)

    def finish(self, module: nn.Module) -> None:
        """Sum the gradients that each rank has for its tokens alone."""
        for one in module.parameters():
            if one.grad is not None and not isinstance(one, DTensor):
                dist.all_reduce(one.grad)

    def grad_norm(self, module: nn.Module) -> float:
        """Return torch's norm."""
        return norm_of(module)
