"""Runs of the whole stage with some ranks' outputs, parameters or arguments alone, which show what each contributes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor, nn

from gradconform.trial.mesh import Mesh

from .parts import Parts
from .whole import Oracle, WholeRun


class SomeRanks:
    """The runs of one row. Each is computed when it is first needed, and stored."""

    def __init__(  # noqa: PLR0913, PLR0917 (a whole stage, and how it is divided)
        self,
        oracle: Oracle,
        mesh: Mesh,
        parts: Sequence[Parts],
        whole: nn.Module,
        positions: Callable[[int, int, int], Tensor],
        cut: Callable[[int, int, Tensor], Tensor],
    ) -> None:
        """Store how the stage is divided.

        ``positions`` returns the positions of a rank's part of an output, from the micro-batch, the output and the
        rank. ``cut`` returns a rank's part of an argument, from the rank, the argument's place and the argument.
        """
        self._oracle, self._mesh, self._parts, self._whole = oracle, mesh, parts, whole
        self._positions, self._cut = positions, cut
        self._known: dict[tuple[str, str], list[WholeRun]] = {}

    def by_outputs(self, name: str) -> list[WholeRun]:
        """Return the runs with only the output gradients of the ranks at each place along a mesh dimension."""
        outputs = self._oracle.plain.outputs

        def own(ranks: Sequence[int]) -> list[list[Tensor]]:
            return [
                [torch.cat([self._positions(mb, n, rank).reshape(-1) for rank in ranks]) for n in range(len(some))]
                for mb, some in enumerate(outputs)
            ]

        return self._stored("outputs", name, lambda: self._oracle.by_outputs([own(one) for one in self._places(name)]))

    def by_parameters(self, name: str) -> list[WholeRun]:
        """Return the runs with only the divided parameters of the ranks at each place along a mesh dimension."""
        sizes = {name: one.numel() for name, one in self._whole.named_parameters(remove_duplicate=False)}

        def own(ranks: Sequence[int]) -> dict[str, Tensor]:
            found: dict[str, list[Tensor]] = defaultdict(list)
            for one in (one for rank in ranks for one in self._parts[rank].params.values()):
                found[one.whole].append(one.positions.reshape(-1))
            joined = {whole: torch.cat(some).unique() for whole, some in found.items()}
            return {whole: positions for whole, positions in joined.items() if positions.numel() < sizes[whole]}

        return self._stored(
            "parameters", name, lambda: self._oracle.by_parameters([own(one) for one in self._places(name)])
        )

    @cached_property
    def by_arguments(self) -> list[WholeRun]:
        """The runs with each rank's part of the arguments alone; empty if the stage cannot run with that."""
        try:
            return [self._oracle.by_arguments(partial(self._cut, rank)) for rank in range(self._mesh.ranks)]
        except Exception:  # noqa: BLE001 (the stage may need all arguments, or its outputs have the shape of its part)
            return []

    def _stored(self, kind: str, name: str, run: Callable[[], list[WholeRun]]) -> list[WholeRun]:
        if (kind, name) not in self._known:
            self._known[kind, name] = run()
        return self._known[kind, name]

    def _places(self, name: str) -> list[list[int]]:
        """Return the ranks at each place along a mesh dimension."""
        coordinates = self._mesh.coordinates
        return [
            [rank for rank in range(self._mesh.ranks) if coordinates[rank][name] == place]
            for place in range(self._mesh.sizes[name])
        ]
