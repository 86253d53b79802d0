"""Drives a sharded stage through a row on one rank, and shows what this rank has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.utils.checkpoint import checkpoint

from gradconform.adapter import Adapter, StageSpec
from gradconform.drive.watches import on_cpu
from gradconform.trees import as_tuple, flattened, map_leaves
from gradconform.trial.mesh import Mesh

from .batches import Batch
from .cases import Row
from .collectives import Call, CollectiveLog
from .described import optional
from .layout import Layout, layout_of, layout_of_dtensor, local, part_or_refuse, partial_dims
from .parts import Parts
from .stage import DescriptionError
from .whole import RATE, clip_factor, frozen_names, standing_grad


@dataclass(slots=True)
class Shown:
    """What one rank has: tensors on the CPU, each this rank's part.

    ``outputs`` and ``input_grads`` have a list per micro-batch. ``local`` are the parameter gradients before
    ``finish``. ``grads``, ``norm`` and ``buffers`` are those after the first step, ``params`` those after all steps.
    ``norms`` has the norm while one whole parameter has a drawn gradient and every other one zeros.
    """

    outputs: list[list[Tensor]] = field(default_factory=list)
    output_layouts: list[Any] = field(default_factory=list)
    input_grads: list[list[Tensor | None]] = field(default_factory=list)
    local: dict[str, Tensor | None] = field(default_factory=dict)
    grads: dict[str, Tensor | None] = field(default_factory=dict)
    last_grads: dict[str, Tensor | None] = field(default_factory=dict)
    norm: float | None = None
    norms: dict[str, float] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    params: dict[str, Tensor] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """How arguments, outputs and their gradients are divided, as the stage says."""

    args: Sequence[Layout]
    arg_grads: Sequence[Layout]
    outputs: Sequence[Layout] | None
    output_grads: Sequence[Layout] | None

    @classmethod
    def of(cls, stage: Any, words: str, mesh: Mesh, args: int) -> Boundary:
        """Read the boundary; raise :class:`~gradconform.sharded.stage.DescriptionError` for a wrong placement."""

        def read(name: str, number: int | None) -> list[Layout] | None:
            given = optional(stage, name)
            if given is None:
                return None
            several = tuple(given) if isinstance(given, (tuple, list)) else (given,)
            if number is not None and len(several) != number:
                msg = f"{words}: {name} has {len(several)} entries; expected one for each of {number} arguments"
                raise DescriptionError(msg)
            return [
                layout_of({} if one is None else one, mesh, f"{words}: {name}[{i}]") for i, one in enumerate(several)
            ]

        own = read("arg_placements", args) or [layout_of({}, mesh, words)] * args
        for place, one in enumerate(own):
            if partial_dims(one):
                msg = f"{words}: arg_placements[{place}] is Partial; expected Shard or Replicate"
                raise DescriptionError(msg)
        return cls(
            args=own,
            arg_grads=read("arg_grad_placements", args) or own,
            outputs=read("output_placements", None),
            output_grads=read("output_grad_placements", None),
        )


class Drive:
    """One rank with its module, ready to run a row."""

    def __init__(  # noqa: PLR0913 (a module, what it is a part of, and what runs it)
        self,
        stage: Any,
        words: str,
        module: nn.Module,
        *,
        parts: Parts,
        whole: nn.Module,
        row: Row,
        mesh: Mesh,
        device_mesh: DeviceMesh,
        rank: int,
        adapter: Adapter,
        device: torch.device,
    ) -> None:
        """Freeze, checkpoint and fill the module as the row says."""
        self._stage, self._words, self.module, self._parts = stage, words, module, parts
        self._row, self._mesh, self._device_mesh, self._rank = row, mesh, device_mesh, rank
        self._adapter, self._device = adapter, device
        frozen = frozen_names(whole, row.frozen)
        self._whole = dict(whole.named_parameters(remove_duplicate=False))
        self._first = {id(one): name for name, one in reversed(list(self._whole.items()))}
        self._trained = [name for name, _ in whole.named_parameters() if name not in frozen]
        for name, parameter in module.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and parts.params[name].whole not in frozen)
        if row.checkpoint:
            inner = module.forward
            module.forward = lambda *args: checkpoint(inner, *args, use_reentrant=False)
        if row.standing:
            for name, parameter in module.named_parameters():
                if parameter.requires_grad:
                    parameter.grad = self._drawn(name, parameter, row.standing)

    def _drawn(self, name: str, parameter: nn.Parameter, kind: str) -> Tensor:
        """Return this rank's part of a gradient of ``kind`` for a parameter of its module."""
        own = self._parts.params[name]
        whole = self._whole[own.whole]
        given = standing_grad(whole.shape, self._first[id(whole)], parameter.dtype, kind)
        return _like(own.of(given).to(self._device), parameter)

    def show(
        self,
        batches: Sequence[Sequence[Batch]],
        file: Path,
        note: Callable[[str], None],
        within: Callable[[], AbstractContextManager[object]],
    ) -> Shown:
        """Run all steps and return what this rank has; ``within`` is entered around the user's code.

        The collectives are written to ``file``, and ``note`` receives each before it begins.
        """
        shown = Shown()
        args = len(batches[0][0].args)
        boundary = Boundary.of(self._stage, self._words, self._mesh, args)

        def on_call(call: Call) -> None:
            note(f"{call.shown(self._mesh)}")

        log = CollectiveLog(file, groups_of(self._device_mesh), on_call)
        for step, some in enumerate(batches):
            first = step == 0
            self._step(some, boundary, shown if first else Shown(), log, within)
            own = shown if first else Shown()
            own.local = self._grads()
            if hasattr(self._stage, "finish"):
                with within(), log:
                    self._stage.finish(self.module)
            own.grads = self._grads()
            norm = self._norm(log, within)
            if first:
                shown.norm = norm
                shown.norms = {} if norm is None else self._norms(log, within)
                shown.buffers = {name: _on_cpu(one) for name, one in self.module.named_buffers()}
            shown.last_grads = own.grads
            self._update(1.0 if norm is None else clip_factor(norm))
        shown.params = {name: _on_cpu(one) for name, one in self.module.named_parameters()}
        log.close()
        shown.calls = log.calls
        return shown

    def _norm(self, log: CollectiveLog, within: Callable[[], AbstractContextManager[object]]) -> float | None:
        if not hasattr(self._stage, "grad_norm"):
            return None
        with within(), log:
            return float(local(self._stage.grad_norm(self.module)))

    def _norms(self, log: CollectiveLog, within: Callable[[], AbstractContextManager[object]]) -> dict[str, float]:
        """Return the norm for each trained parameter of the whole stage, while the others have zeros.

        The joint norm hides a parameter with small gradients. Every rank has the same parameters in the same order.
        """
        own = dict(self.module.named_parameters())
        kept = {name: one.grad for name, one in own.items()}
        found = {}
        for whole in self._trained:
            for name, one in own.items():
                if one.requires_grad:
                    same = self._first[id(self._whole[self._parts.params[name].whole])] == whole
                    one.grad = self._drawn(name, one, "values" if same else "zeros")
            norm = self._norm(log, within)
            found[whole] = 0.0 if norm is None else norm
        for name, one in own.items():
            one.grad = kept[name]
        return found

    def _update(self, factor: float) -> None:
        with torch.no_grad():
            for parameter in self.module.parameters():
                if parameter.grad is not None:
                    own, grad = local(parameter), local(_placed_as(parameter.grad, parameter))
                    own.sub_(grad * (RATE * factor))
                    parameter.grad = None

    def _grads(self) -> dict[str, Tensor | None]:
        return {
            name: None if one.grad is None else _on_cpu(_placed_as(one.grad, one))
            for name, one in self.module.named_parameters()
        }

    def _step(
        self,
        batches: Sequence[Batch],
        boundary: Boundary,
        shown: Shown,
        log: CollectiveLog,
        within: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """Run the program of the row once."""
        args = [self._args(batch, boundary) for batch in batches]
        spec = StageSpec(
            is_first=not any(batches[0].require_grad), n_microbatches=len(batches), example_args=args[0],
            args_require_grad=batches[0].require_grad,
            example_outputs=self._like_outputs(batches[0].outputs, boundary),
        )  # fmt: skip
        with within():
            session: Any = self._adapter.open(self.module, spec)
        outputs: dict[int, Any] = {}
        inputs: dict[int, Sequence[Tensor | None]] = {}
        try:
            for letter, mb in self._row.program:
                act = partial(self._act, session, letter, mb)
                if letter == "F":
                    with within(), log:
                        outputs[mb] = session.forward(mb, args[mb])
                    tensors = [leaf for leaf in flattened(outputs[mb]) if isinstance(leaf, Tensor)]
                    shown.outputs.append([_on_cpu(leaf) for leaf in tensors])
                    shown.output_layouts = [
                        layout_of_dtensor(leaf, self._mesh) if isinstance(leaf, DTensor) else None for leaf in tensors
                    ]
                else:
                    grads = None if letter == "W" else self._output_grads(batches[mb], outputs.pop(mb), boundary)
                    with within(), log:
                        found = act(grads)
                    if letter != "W":
                        inputs[mb] = found
            with within(), log:
                session.finish()
        finally:
            session.close()
        for mb in range(len(batches)):
            shown.input_grads.append([None if one is None else _on_cpu(one) for one in inputs[mb]])

    def _like_outputs(self, whole: Any, boundary: Boundary) -> Any:
        """Return tensors like this rank's outputs; a DTensor has the shape of the whole one."""
        places = count()

        def own(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            place = next(places)
            layout = output_layout(boundary, self._mesh, place, self._words)
            found = part_or_refuse(leaf, layout, self._mesh, self._rank, f"{self._words}: output_placements[{place}]")
            made = torch.empty_like(found, device=self._device, requires_grad=False)
            return made.requires_grad_(leaf.requires_grad)

        return map_leaves(own, whole)

    def _act(self, session: Any, letter: str, mb: int, grads: Any) -> Any:
        if letter == "B":
            return session.backward(mb, grads)
        return session.backward_input(mb, grads) if letter == "I" else session.backward_weight(mb)

    def _args(self, batch: Batch, boundary: Boundary) -> tuple[Any, ...]:
        """Return this rank's part of the arguments, as leaves."""
        found = []
        for place, (one, require) in enumerate(zip(batch.args, batch.require_grad, strict=True)):
            if isinstance(one, Tensor):
                what = f"{self._words}: arg_placements[{place}]"
                own = part_or_refuse(one, boundary.args[place], self._mesh, self._rank, what)
                found.append(own.detach().clone().to(self._device).requires_grad_(require))
            else:
                found.append(one)
        return tuple(found)

    def _output_grads(self, batch: Batch, outputs: Any, boundary: Boundary) -> Any:
        """Return this rank's part of the output gradients, in the structure of the outputs."""
        places = iter(range(len(batch.output_grads)))

        def own(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return None
            place = next(places, None)
            if place is None:
                msg = (
                    f"{self._words}: the sharded stage returned more than the {len(batch.output_grads)} outputs of the "
                    "whole stage; return the same"
                )
                raise DescriptionError(msg)
            return self._grad_of(leaf, batch.output_grads[place], boundary, place)

        found = map_leaves(own, as_tuple(outputs))
        if (left := len(list(places))) > 0:
            msg = f"{self._words}: the sharded stage returned {left} outputs less than the whole stage; return the same"
            raise DescriptionError(msg)
        return found

    def _grad_of(self, leaf: Tensor, grad: Tensor | None, boundary: Boundary, place: int) -> Any:
        if grad is None:
            return None
        layout = self.output_layout(leaf, boundary, place)
        given = boundary.output_grads
        if given is not None and not isinstance(leaf, DTensor):
            of_grad = given[place]
        elif callable(layout):
            of_grad = layout
        else:
            of_grad = {name: Replicate() if isinstance(one, Partial) else one for name, one in layout.items()}
        own = part_or_refuse(grad, of_grad, self._mesh, self._rank, f"{self._words}: output_grad_placements[{place}]")
        if own.shape != local(leaf).shape and not isinstance(leaf, DTensor):
            msg = (
                f"{self._words}: output {place} has the shape {tuple(leaf.shape)} on rank {self._rank}, but its part "
                f"of the whole {tuple(grad.shape)} has {tuple(own.shape)}; correct output_placements"
            )
            raise DescriptionError(msg)
        own = own.to(self._device)
        if not isinstance(leaf, DTensor):
            return own
        placements = [Replicate() if isinstance(one, Partial) else one for one in leaf.placements]
        return DTensor.from_local(
            own, leaf.device_mesh, placements, run_check=False, shape=leaf.shape, stride=leaf.stride()
        )

    def output_layout(self, leaf: Tensor, boundary: Boundary, place: int) -> Layout:
        """Return the layout of an output."""
        if isinstance(leaf, DTensor):
            return layout_of_dtensor(leaf, self._mesh)
        return output_layout(boundary, self._mesh, place, self._words)


def output_layout(boundary: Boundary, mesh: Mesh, place: int, words: str) -> Layout:
    """Return the layout of an output that is no DTensor."""
    if boundary.outputs is None:
        return layout_of({}, mesh, words)
    if place >= len(boundary.outputs):
        msg = f"{words}: output_placements has {len(boundary.outputs)} entries; expected one for each output"
        raise DescriptionError(msg)
    return boundary.outputs[place]


def groups_of(mesh: DeviceMesh) -> dict[str, tuple[int, ...]]:
    """Return the ranks of each group of a mesh by the group's name."""
    groups = [dist.group.WORLD, *mesh.get_all_groups()]
    return {one.group_name: tuple(dist.get_process_group_ranks(one)) for one in groups if one is not None}


def _on_cpu(value: Tensor) -> Tensor:
    found: Tensor = local(value)
    wait = getattr(found, "wait", None)  # an AsyncCollectiveTensor
    if callable(wait):
        found = wait()
    return cast("Tensor", on_cpu(found)).clone()


def _placed_as(grad: Tensor, parameter: Tensor) -> Tensor:
    """Return a DTensor gradient with its parameter's placements; anything else unchanged."""
    if isinstance(grad, DTensor) and isinstance(parameter, DTensor) and grad.placements != parameter.placements:
        return grad.redistribute(placements=parameter.placements)
    return grad


def _like(given: Tensor, parameter: nn.Parameter) -> Tensor:
    """Return a rank's part as the gradient of a parameter, a DTensor if it is one."""
    if not isinstance(parameter, DTensor):
        return given
    return DTensor.from_local(
        given, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip
