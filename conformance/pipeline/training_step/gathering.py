"""Values from the ranks with the same stages: whole tensors from their parts, and whether all agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gradconform.drive.watches import on_cpu
from gradconform.judge.finding import Finding
from gradconform.results import Sort
from gradconform.runtime import Kept, Shard, StepSpec
from gradconform.torch_releases.distributed_tensors import is_distributed


class Replicas:
    """This rank and those that hold the same stages, in a group of the kit's own that later cases reuse.

    They are replicas, and the tensor ranks of each replica.
    """

    def __init__(self, spec: StepSpec, rank: int) -> None:
        """Create the groups: every rank creates all of them, as torch requires."""
        self.spec = spec
        self.rank, self.replica, self.tensor_rank = rank, spec.replica, spec.tensor_rank
        self.count, self.tensor_ranks = spec.replicas * spec.tensor_ranks, spec.tensor_ranks
        self.stages, self.is_last = spec.placement[spec.pipeline_rank], spec.is_last
        self.first = spec.pipeline_rank * self.count
        self.group = _groups(len(spec.placement), self.count)[spec.pipeline_rank]

    def _gathered(self, mine: Any) -> list[Any]:
        """Return the value of each rank with the same stages, in their order."""
        found: list[Any] = [None] * self.count
        dist.all_gather_object(found, mine, group=self.group)
        return found

    def whole(self, kept: Mapping[str, Kept]) -> dict[str, Tensor | None]:
        """Return copies of whole tensors by name; if the ranks hold different tensors, the local one is returned."""
        kinds = self._gathered({name: _form(value) for name, value in kept.items()})
        found: dict[str, Tensor | None] = {}
        for name, value in sorted(kept.items()):
            alike = all(form.get(name) == kinds[0].get(name) for form in kinds)
            if is_distributed(value):
                part: Tensor = value.full_tensor() if alike else value.to_local()
                found[name] = part.detach().clone()
            elif isinstance(value, Shard):
                found[name] = self._of_shards(value) if alike else part_of(value).value
            else:
                found[name] = None if value is None else value.detach().clone()
        return found

    def _of_shards(self, shard: Shard) -> Tensor:
        """Return the whole tensor; for a part on several ranks, the copy of the nearest rank is used."""
        part = part_of(shard)
        reported = self._gathered(replace(part, value=on_cpu(part.value)))
        return put_together(reported[place] for place in nearest_last(self.spec)).to(part.value.device)

    def of_others(self, grads: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        """Return gradients that differ between ranks with the same data as the sum of the others' in float64.

        These are the tensor ranks of a replica; without any, replicas that share sequences.
        """
        if self.tensor_ranks > 1:
            first = self.replica * self.tensor_ranks
            of_same_data = slice(first, first + self.tensor_ranks)
        elif self.spec.context != "whole":
            of_same_data = slice(0, self.count)
        else:
            return {}
        reported = self._gathered({name: on_cpu(grad) for name, grad in grads.items() if grad is not None})
        own = reported[of_same_data]
        return {
            name: torch.stack([some[name].double() for some in own]).sum(0) - grad.double()
            for name, grad in reported[self.replica * self.tensor_ranks + self.tensor_rank].items()
            if all(name in some and some[name].shape == grad.shape for some in own)
            and not all(torch.equal(some[name], grad) for some in own)
        }

    def unlike(self, label: str, tensors: Mapping[Sort, Mapping[str, Tensor | None]]) -> Iterator[Finding]:
        """Yield the tensors that are not bit-equal to those of the first rank with the same stages."""
        mine = {(sort, name): _digest(value) for sort, named in tensors.items() for name, value in named.items()}
        reported = self._gathered(mine)
        for (sort, name), digest in mine.items():
            if digest != reported[0].get((sort, name)):
                stage, _, own = name.partition(".")
                who = "replicas" if self.tensor_ranks == 1 else "ranks with the same stage"
                text = f"{who} differ: this is not bit for bit what rank {self.first} has"
                yield Finding("not_repeatable", f"stage {stage} {own}", label, text, sort=sort)


@lru_cache(maxsize=8)
def _groups(pipeline_ranks: int, count: int) -> list[Any]:
    starts = range(0, pipeline_ranks * count, count)
    return [dist.new_group(list(range(start, start + count))) for start in starts]


def nearest_last(spec: StepSpec) -> list[int]:
    """Return the places among the ranks with the same stages; this rank's own is last."""

    def nearness(place: int) -> int:
        replica, tensor_rank = divmod(place, spec.tensor_ranks)
        return (replica == spec.replica) + (tensor_rank == spec.tensor_rank)

    return sorted(range(spec.replicas * spec.tensor_ranks), key=nearness)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a whole tensor of some ``shape``, and its start in each dimension."""

    value: Tensor
    starts: tuple[int, ...]
    shape: tuple[int, ...]


def part_of(kept: Tensor | Shard) -> Part:
    """Return the part that a shard covers, of a larger part or of the whole tensor."""
    if not isinstance(kept, Shard):
        return Part(kept.detach().clone(), (0,) * kept.dim(), tuple(kept.shape))
    inner = part_of(kept.value)
    starts, shape = list(inner.starts), list(inner.shape)
    starts[kept.dim] += kept.start
    shape[kept.dim] = kept.rows
    return Part(inner.value, tuple(starts), tuple(shape))


def put_together(parts: Iterable[Part]) -> Tensor:
    """Return the whole tensor from its parts; if parts overlap, the last one is used."""
    several = list(parts)
    whole = torch.zeros(several[-1].shape, dtype=several[-1].value.dtype)
    for part in several:
        ends = zip(part.starts, part.value.shape, strict=True)
        whole[tuple(slice(start, start + size) for start, size in ends)] = part.value
    return whole


def _form(value: Kept) -> str:
    return "none" if value is None else type(value).__name__


def _digest(value: Tensor | None) -> str:
    if value is None:
        return ""
    held = on_cpu(value)
    flat = held.contiguous().view(torch.uint8) if held.dim() else held.reshape(1)
    return hashlib.sha1(flat.numpy().tobytes(), usedforsecurity=False).hexdigest()
