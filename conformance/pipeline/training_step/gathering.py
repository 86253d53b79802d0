"""What a rank needs of its replicas: whole tensors, of what each holds a part, and whether all have the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from gradconform.judge.finding import Finding
from gradconform.results import Sort
from gradconform.runtime import Kept, Shard, StepSpec


class Replicas:
    """This rank and those that hold the same stages, in a group of the kit's own that is kept for the next case."""

    def __init__(self, spec: StepSpec, rank: int) -> None:
        """Make the groups: every rank makes all of them, as torch wants it."""
        self.rank, self.replica, self.count = rank, spec.replica, spec.replicas
        self.stages, self.is_last = spec.placement[spec.pipeline_rank], spec.is_last
        self.first = rank - spec.replica
        self.group = _groups(len(spec.placement), spec.replicas)[spec.pipeline_rank]

    def _told(self, mine: Any) -> list[Any]:
        """Return what each replica says, by replica."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine, group=self.group)
        return found

    def whole(self, kept: Mapping[str, Kept]) -> dict[str, Tensor | None]:
        """Return whole tensors, copied, by name; what one of the replicas does not hold alike stays as it is here."""
        forms = self._told({name: _form(value) for name, value in kept.items()})
        found: dict[str, Tensor | None] = {}
        for name, value in sorted(kept.items()):
            alike = all(form.get(name) == forms[0].get(name) for form in forms)
            if isinstance(value, DTensor):
                part: Tensor = value.full_tensor() if alike else value.to_local()
                found[name] = part.detach().clone()
            elif isinstance(value, Shard):
                found[name] = self._of_shards(value) if alike else value.value.detach().clone()
            else:
                found[name] = None if value is None else value.detach().clone()
        return found

    def _of_shards(self, shard: Shard) -> Tensor:
        told = self._told((shard.start, shard.value.detach().cpu()))
        whole = torch.zeros(shard.rows, *shard.value.shape[1:], dtype=shard.value.dtype)
        for start, value in told:
            whole[start : start + len(value)] = value
        return whole.to(shard.value.device)

    def unlike(self, label: str, tensors: Mapping[Sort, Mapping[str, Tensor | None]]) -> Iterator[Finding]:
        """Yield what is not bit for bit what the first replica has."""
        mine = {(sort, name): _digest(value) for sort, named in tensors.items() for name, value in named.items()}
        told = self._told(mine)
        for (sort, name), digest in mine.items():
            if digest != told[0].get((sort, name)):
                stage, _, own = name.partition(".")
                text = f"replicas differ: this is not bit for bit what rank {self.first} has"
                yield Finding("not_repeatable", f"stage {stage} {own}", label, text, sort=sort)


@lru_cache(maxsize=8)
def _groups(pipeline_ranks: int, replicas: int) -> list[Any]:
    starts = range(0, pipeline_ranks * replicas, replicas)
    return [dist.new_group(list(range(start, start + replicas))) for start in starts]


def _form(value: Kept) -> str:
    return "none" if value is None else type(value).__name__


def _digest(value: Tensor | None) -> str:
    if value is None:
        return ""
    flat = value.detach().cpu().contiguous().view(torch.uint8) if value.dim() else value.detach().cpu().reshape(1)
    return hashlib.sha1(flat.numpy().tobytes(), usedforsecurity=False).hexdigest()
