"""The part of each parameter and buffer that a rank has, by the positions of its elements in the whole tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradconform.trial.mesh import Mesh
from gradconform.user_input.values import nearest

from .described import called, optional
from .layout import layout_of, layout_of_dtensor, local, part_or_refuse, partial_dims
from .stage import DescriptionError


@dataclass(frozen=True, slots=True)
class Part:
    """A rank's part of a whole tensor: the whole's name, and the position there of each of its elements."""

    whole: str
    positions: Tensor

    def of(self, whole: Tensor) -> Tensor:
        """Return the part of the whole tensor."""
        return whole.reshape(-1)[self.positions.reshape(-1).to(whole.device)].reshape(self.positions.shape)

    @property
    def key(self) -> tuple[object, ...]:
        """A value that is equal for copies of one part."""
        return (self.whole, *self.positions.shape, *self.positions.reshape(-1).tolist())


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts of one rank by the name in its module, or why it has none.

    ``placed`` are the names of the stage's placements, and ``names`` those of all parameters, tied ones included.
    ``mistake`` is one in the description, and ``refused`` says why the stage refuses the row.
    """

    params: Mapping[str, Part] = field(default_factory=dict)
    buffers: Mapping[str, Part] = field(default_factory=dict)
    placed: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    mistake: str = ""
    refused: str = ""


class Placed:
    """A rank's module, and the parts that it has."""

    def __init__(self, stage: Any, words: str, module: nn.Module, whole: nn.Module, mesh: Mesh, rank: int) -> None:  # noqa: PLR0913, PLR0917 (a module, the whole, and where it is)
        """Find the parts; raise :class:`~gradconform.sharded.stage.DescriptionError` for a mistake."""
        self._words, self._mesh, self._rank = words, mesh, rank
        self._placements = optional(stage, "placements", {})
        if not isinstance(self._placements, Mapping):
            msg = f"{words}: placements: expected a placement for each parameter by name, got {self._placements!r:.80}"
            raise DescriptionError(msg)
        names = getattr(stage, "whole_names", {})
        self._whole_name = names if callable(names) else lambda name, _: names.get(name, name)
        self._whole = {
            **dict(whole.named_parameters(remove_duplicate=False)),
            **dict(whole.named_buffers(remove_duplicate=False)),
        }
        params = {name: self._part(name, tensor) for name, tensor in module.named_parameters()}
        buffers = {
            name: self._part(name, tensor) for name, tensor in module.named_buffers() if self._has_buffer(name, tensor)
        }
        names = [name for name, _ in module.named_parameters(remove_duplicate=False)]
        self.parts = Parts(params, buffers, tuple(self._placements), tuple(names))
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            own = params.get(name) or buffers.get(name)
            if own is not None:
                with torch.no_grad():
                    local(tensor).copy_(own.of(self._whole[own.whole].detach()))

    def _name_in_whole(self, name: str) -> str:
        return str(called(f"{self._words}: whole_names", self._whole_name, name, self._mesh.coordinates[self._rank]))

    def _has_buffer(self, name: str, tensor: Tensor) -> bool:
        """Return whether a buffer is one of the whole stage's, of the same shape or with a placement."""
        whole = self._whole.get(self._name_in_whole(name))
        return whole is not None and (name in self._placements or tensor.shape == whole.shape)

    def _part(self, name: str, tensor: Tensor) -> Part:
        found = self._name_in_whole(name)
        what = f"{self._words}: parameter {name!r}"
        if found not in self._whole:
            near = nearest(found, self._whole)
            msg = f"{what} of the sharded module: the whole stage has no {found!r}; nearest: {near}. Use whole_names"
            raise DescriptionError(msg)
        whole = self._whole[found]
        if isinstance(tensor, DTensor):
            layout = layout_of_dtensor(tensor, self._mesh)
        elif name in self._placements:
            layout = layout_of(self._placements[name], self._mesh, f"{what}: placements")
        elif not isinstance(tensor, nn.Parameter):
            layout = layout_of({}, self._mesh, what)
        else:
            msg = f"{what} has no placement; add {name!r} to placements, as Shard(0) or Replicate()"
            raise DescriptionError(msg)
        if partial_dims(layout):
            msg = f"{what}: a parameter cannot be Partial; expected Shard or Replicate"
            raise DescriptionError(msg)
        positions = torch.arange(whole.numel(), dtype=torch.float64).reshape(whole.shape)
        own = part_or_refuse(positions, layout, self._mesh, self._rank, what).to(torch.int64)
        if own.shape != local(tensor).shape:
            place = "" if callable(layout) else f" by {self._placements.get(name, layout)!r}"
            msg = (
                f"{what}: its part of the whole {tuple(whole.shape)}{place} has the shape {tuple(own.shape)} on rank "
                f"{self._rank}, but sharded() made {tuple(local(tensor).shape)}; correct the placement or the module"
            )
            raise DescriptionError(msg)
        return Part(found, own.contiguous())


def refuse_gaps(words: str, whole: nn.Module, ranks: Sequence[Parts]) -> None:
    """Raise :class:`.DescriptionError` if the parts of all ranks do not cover each parameter exactly."""
    known = {name for parts in ranks for name in (*parts.names, *parts.buffers)}
    for name in ranks[0].placed:
        if name not in known:
            msg = f"{words}: placements has {name!r}, which the sharded module does not have; nearest: "
            raise DescriptionError(msg + nearest(name, known))
    for name, tensor in whole.named_parameters():
        other = {one for one, same in whole.named_parameters(remove_duplicate=False) if same is tensor}
        own = [
            (rank, part) for rank, parts in enumerate(ranks) for part in parts.params.values() if part.whole in other
        ]
        if not own:
            msg = f"{words}: no rank has the whole stage's parameter {name!r}; add it, or use whole_names"
            raise DescriptionError(msg)
        _refuse_gap(f"{words}: parameter {name!r}", tensor.numel(), own)


def _refuse_gap(what: str, count: int, own: Iterable[tuple[int, Part]]) -> None:
    different: dict[tuple[int, ...], int] = {}
    for rank, part in own:
        different.setdefault(tuple(sorted(part.positions.reshape(-1).tolist())), rank)
    covered = {one for positions in different for one in positions}
    if len(covered) < count:
        msg = (
            f"{what}: the parts of all ranks miss {count - len(covered)} of its {count} elements; correct its placement"
        )
        raise DescriptionError(msg)
    if sum(map(len, different)) > count:
        one, other = list(different.values())[:2] if len(different) > 1 else [next(iter(different.values()))] * 2
        msg = f"{what}: the parts of ranks {one} and {other} overlap without being copies; correct its placement"
        raise DescriptionError(msg)
