"""torch's own work on schedules, in ``torch.distributed.pipelining.schedules``.

All of it has private names in torch 2.13; they are used here alone. Where one goes, importing this module says so: look
for what ``PipelineScheduleMulti`` calls in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch.distributed.pipelining._utils import generate_stage_to_rank_mapping
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_send_recv,
    _add_unshard_reshard,
    _merge_bw,
    _validate_schedule,
)


class TorchScheduleText:
    """Drives torch's functions."""

    name = "torch"

    def rewritten(self, cell: str) -> str:
        """Parse a cell and print it."""
        return _written(_Action.from_str(cell))

    def placed(self, rows: Sequence[Sequence[str]], stages: int, microbatches: int) -> Mapping[int, int]:
        """Validate a schedule."""
        found: dict[int, int] = _validate_schedule(_parsed(rows), len(rows), stages, microbatches)
        return found

    def mapping(self, ranks: int, stages: int, style: str) -> Mapping[int, int]:
        """Place stages."""
        return generate_stage_to_rank_mapping(ranks, stages, style)

    def merged(self, row: Sequence[str]) -> list[str]:
        """Merge I and W."""
        return [_written(action) for action in _merge_bw([_Action.from_str(cell) for cell in row])]

    def lowered(self, rows: Sequence[Sequence[str]], stages: int, microbatches: int) -> list[list[str]]:
        """Put in sharding, then communication, as the runtime does."""
        ranks = self.placed(rows, stages, microbatches)
        sharded = {rank: _add_unshard_reshard(actions) for rank, actions in _parsed(rows).items()}
        lowered = _add_send_recv(sharded, ranks.__getitem__, stages)
        return [[_written(action) for action in lowered[rank]] for rank in range(len(rows))]


def _parsed(rows: Sequence[Sequence[str]]) -> dict[int, list[_Action | None]]:
    return {rank: [_Action.from_str(cell) for cell in row] for rank, row in enumerate(rows)}


def _written(action: _Action | None) -> str:
    return "" if action is None else str(action)
