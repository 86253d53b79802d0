"""Divides a whole tensor over a mesh by its placements, and checks that the parts cover it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from gradconform.diagnosis.cause import listed
from gradconform.trial.mesh import Mesh

from .stage import DescriptionError

#: Returns a rank's part of a whole tensor, from its coordinate and the sizes of the mesh, by dimension.
Slice: TypeAlias = Callable[[Tensor, Mapping[str, int], Mapping[str, int]], Tensor]
#: How a tensor is divided: a placement per mesh dimension, or a slice function.
Layout: TypeAlias = Mapping[str, Placement] | Slice

_REPLICATED = Replicate()


def layout_of(given: object, mesh: Mesh, name: str) -> Layout:
    """Return the layout of a tensor from what a user gave; ``name`` begins the message of a mistake.

    Raises :class:`~gradconform.sharded.stage.DescriptionError`.
    """
    if isinstance(given, Placement):
        if isinstance(given, Replicate):
            return dict.fromkeys(mesh.sizes, given)
        if len(mesh.sizes) > 1:
            msg = f"{name}: the mesh has the dimensions {listed(list(mesh.sizes))}; give the placement of each, as "
            msg += f"{{{next(iter(mesh.sizes))!r}: {given!r}}}"
            raise DescriptionError(msg)
        return dict.fromkeys(mesh.sizes, given)
    if isinstance(given, Mapping):
        unknown = [one for one in given if one not in mesh.sizes]
        wrong = [one for one in given.values() if not isinstance(one, Placement)]
        if unknown or wrong:
            msg = f"{name}: expected placements by mesh dimension ({listed(list(mesh.sizes))}), got {given!r}"
            raise DescriptionError(msg)
        return {one: given.get(one, _REPLICATED) for one in mesh.sizes}
    if callable(given):
        return given
    msg = f"{name}: expected a placement, a placement per mesh dimension or a slice function, got {given!r}"
    raise DescriptionError(msg)


def layout_of_dtensor(tensor: DTensor, mesh: Mesh) -> Layout:
    """Return the layout of a DTensor, whose mesh may have some of the dimensions, and other names for them."""
    own = tensor.device_mesh
    names = own.mesh_dim_names or tuple(mesh.sizes)[-own.ndim :]
    names = tuple(
        name if name in mesh.sizes else mesh.named(dist.get_process_group_ranks(own.get_group(place)))
        for place, name in enumerate(names)
    )
    found = dict(zip(names, tensor.placements, strict=True))
    return {one: found.get(one, _REPLICATED) for one in mesh.sizes}


def partial_dims(layout: Layout) -> tuple[str, ...]:
    """Return the mesh dimensions over which the ranks' parts are summed."""
    return () if callable(layout) else tuple(name for name, one in layout.items() if isinstance(one, Partial))


def averages(layout: Layout) -> bool:
    """Return whether the parts are averaged instead of summed."""
    return not callable(layout) and any(isinstance(one, Partial) and one.reduce_op == "avg" for one in layout.values())


def part(whole: Tensor, layout: Layout, mesh: Mesh, rank: int) -> Tensor:
    """Return a rank's part of a tensor, cut as torch cuts it, dimension after dimension."""
    coordinate = mesh.coordinates[rank]
    if callable(layout):
        return layout(whole, coordinate, mesh.sizes)
    for name, size in mesh.sizes.items():
        placement: Any = layout[name]
        if (several := getattr(placement, "split_factor", None)) is not None:  # torch's class for it is private
            blocks = torch.chunk(whole, int(several), placement.dim)
            whole = torch.cat([_piece(one, placement.dim, size, coordinate[name]) for one in blocks], placement.dim)
        elif isinstance(placement, Shard):
            whole = _piece(whole, placement.dim, size, coordinate[name])
    return whole


def _piece(whole: Tensor, dim: int, size: int, place: int) -> Tensor:
    pieces = torch.chunk(whole, size, dim)
    return pieces[place] if place < len(pieces) else whole.narrow(dim, 0, 0)


def part_or_refuse(whole: Tensor, layout: Layout, mesh: Mesh, rank: int, name: str) -> Tensor:
    """Return a rank's part; a placement or a slice function that does not fit the tensor is a mistake of the stage."""
    for one in () if callable(layout) else layout.values():
        dim = getattr(one, "dim", None)
        if dim is not None and not -whole.dim() <= dim < whole.dim():
            msg = f"{name}: {one!r} does not fit the shape {tuple(whole.shape)} of the whole tensor"
            raise DescriptionError(msg)
    try:
        found: object = part(whole, layout, mesh, rank)
    except Exception as error:
        msg = f"{name}: its slice function raised {type(error).__name__}: {error}"
        raise DescriptionError(msg) from error
    if not isinstance(found, Tensor):
        msg = f"{name}: its slice function returned {type(found).__name__}; expected this rank's part of the tensor"
        raise DescriptionError(msg)
    return found


def local(value: Any) -> Any:
    """Return this rank's part of a DTensor; anything else unchanged."""
    return value.to_local() if isinstance(value, DTensor) else value
