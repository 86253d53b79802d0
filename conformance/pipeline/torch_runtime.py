"""Torch's pipeline stages and schedules, with the implementation under test in place of torch's functions.

The private names are in :mod:`gradconform.torch_releases.pipelining`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from gradconform.torch_releases import pipelining

from .cases import Case, Scenario
from .exchange import Marker
from .whole_model import mean_square


def put_under_test(functions: Mapping[str, Callable[..., Any]], marker: Marker) -> None:
    """Make every PipelineStage of this process call ``functions``; a missing one raises when it is called."""
    called = (name.spellings[-1] for name in pipelining.CALLED_BY_STAGES)
    pipelining.put_in_stages({name: _marked(name, functions.get(name), marker) for name in called})


def _marked(name: str, function: Callable[..., Any] | None, marker: Marker) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if function is None:
            msg = f"the target has no {name}"
            raise NotImplementedError(msg)
        with marker.within():
            return function(*args, **kwargs)

    return call


class MarkedStage(PipelineStage):
    """A PipelineStage that marks its actions."""

    note: Callable[[str], None]

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Mark F and run it."""
        self._note("F", fwd_chunk_id)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False  # noqa: FBT001, FBT002 (torch's signature)
    ) -> Any:  # fmt: skip
        """Mark B or I and run it."""
        self._note("B" if full_backward else "I", bwd_chunk_id)
        return super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> Any:  # noqa: FBT001, FBT002 (torch's signature)
        """Mark W and run it."""
        self._note("W", bwd_chunk_id)
        return super().backward_weight_one_chunk(bwd_chunk_id, last_backward)

    def _note(self, letter: str, mb: int) -> None:
        self.note(f"{self.stage_index}{letter}{mb}")


def make_stages(
    modules: Mapping[int, nn.Module],
    stages: int,
    device: torch.device,
    group: dist.ProcessGroup | None,
    note: Callable[[str], None],
) -> list[PipelineStage]:
    """Return the pipeline stages of this rank, which pass their actions to ``note``; ``modules`` by stage index."""
    made: list[PipelineStage] = []
    for index, module in sorted(modules.items()):
        stage = MarkedStage(module, index, stages, device, group=group)
        stage.note = note
        made.append(stage)
    return made


def make_schedule(case: Case, scenario: Scenario, stages: list[PipelineStage]) -> Any:
    """Return torch's schedule object: of its class, or of its runtime with the CSV file loaded."""
    found = pipelining.RUNTIME.find() if case.from_file else pipelining.SCHEDULE_CLASS.find()(case.schedule)
    options = {"loss_fn": mean_square, **pipelining.scaling(found, scaled=scenario.scale_grads)}
    single = issubclass(found, pipelining.SINGLE.find())
    made = found(stages[0] if single else stages, case.microbatches, **options)
    if case.from_file:
        pipelining.LOAD_CSV.find(made)(case.schedule)
    return made
