"""torch's pipeline runtime around a backward: its work on schedules, and its stage objects, manual and traced."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble, SplitPoint, pipeline
from torch.distributed.pipelining._utils import InferenceMode, generate_stage_to_rank_mapping
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_send_recv,
    _add_unshard_reshard,
    _merge_bw,
    _validate_schedule,
)

from gradconform.pipeline.stage_objects import DwBuilder, StageObject

from .torch_stage import group_of_one

# Private, as in torch_stage: nothing public says that all metadata is given.


class TorchStageObject:
    """One of torch's stages, manual or traced."""

    def __init__(self, stage: Any) -> None:
        """Keep a stage that is ready to run."""
        self._stage = stage

    @property
    def module(self) -> nn.Module:
        """The module of the stage."""
        found: nn.Module = self._stage.submod
        return found

    def forward(self, mb: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run one chunk forward."""
        return self._stage.forward_one_chunk(mb, args, dict(kwargs))

    def take(self, mb: int, outputs: Any) -> None:
        """Take activations as from a stage of the same rank."""
        self._stage.set_local_fwd_input(outputs, mb)

    def backward(self, mb: int, loss: Tensor | None, *, full: bool) -> None:
        """Run one chunk backward, in one piece or the first half."""
        self._stage.backward_one_chunk(mb, loss=loss, full_backward=full)

    def take_grads(self, mb: int, behind: StageObject) -> None:
        """Take gradients as from a stage of the same rank."""
        assert isinstance(behind, TorchStageObject)  # noqa: S101 (all stages of a chain are of one adapter)
        self._stage.set_local_bwd_input(behind._stage.get_local_bwd_output(mb), mb)  # noqa: SLF001 (its own class)

    def weight(self, mb: int) -> None:
        """Run the second half of one chunk's backward."""
        self._stage.backward_weight_one_chunk(mb)

    def kept(self) -> Mapping[str, int]:
        """Count the caches of a stage. When one of the names goes, see ``clear_runtime_states`` in torch."""
        stage = self._stage
        return {
            "forward cache": len(stage.fwd_cache),
            "backward cache": len(stage.bwd_cache),
            "output chunks": len(stage.output_chunks),
            "weight runners": len(stage.dw_runner),
        }

    def clear(self) -> None:
        """Clear what a schedule clears before a step."""
        self._stage.clear_runtime_states()


class TorchStageObjects:
    """Makes torch's stages, all on one process."""

    name = "torch"

    def manual(
        self,
        modules: Sequence[nn.Module],
        example: tuple[Any, ...],
        microbatches: int,
        *,
        dw_builders: Sequence[DwBuilder] | None = None,
        checked: bool = False,
    ) -> list[TorchStageObject]:
        """Return stages with static metadata, from one run of the modules on the example."""
        made, group = [], group_of_one()
        for index, module in enumerate(modules):
            outputs = module(*example)
            stage = PipelineStage(
                module, index, len(modules), torch.device("cpu"), input_args=example, output_args=outputs, group=group,
                dw_builder=None if dw_builders is None else dw_builders[index],
            )  # fmt: skip
            stage._inference_mode = InferenceMode.STATIC  # noqa: SLF001 (as above)
            # What TORCH_DISTRIBUTED_DEBUG=DETAIL sets; it is read once, when the stage is made.
            stage._runtime_validate = checked  # noqa: SLF001 (as above)
            made.append(_ready(stage, microbatches, example))
            example = (outputs.detach().requires_grad_(),)
        return made

    def traced(
        self,
        model: nn.Module,
        cuts: Sequence[str],
        example: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        microbatches: int,
    ) -> list[TorchStageObject]:
        """Return the stages of a traced model."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tracer, on its own parts
            pipe = pipeline(model, example, dict(kwargs), split_spec=dict.fromkeys(cuts, SplitPoint.BEGINNING))
        stages = [pipe.build_stage(index, torch.device("cpu"), group_of_one()) for index in range(pipe.num_stages)]
        return [_ready(stage, microbatches, example) for stage in stages]

    def split_schedule(self, stages: Sequence[StageObject], microbatches: int) -> object:
        """Return torch's zero-bubble schedule of the stages."""
        own = [stage._stage for stage in stages if isinstance(stage, TorchStageObject)]  # noqa: SLF001 (its own class)
        return ScheduleInterleavedZeroBubble(own, microbatches)


def _ready(stage: Any, microbatches: int, example: tuple[Any, ...]) -> TorchStageObject:
    """Do what a schedule does before its first step. When these names go, see ``_initialize_pp_stages`` there."""
    stage.has_backward = True
    stage._prepare_forward_infra(microbatches, example, has_backward=True)  # noqa: SLF001 (as above)
    stage._prepare_backward_infra(microbatches)  # noqa: SLF001 (as above)
    return TorchStageObject(stage)


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
