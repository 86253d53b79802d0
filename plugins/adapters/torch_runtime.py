"""torch's pipeline runtime without its backward: functions on schedules, and stage objects, manual and traced."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble, SplitPoint, pipeline

from gradconform.adapter import UnsupportedError
from gradconform.pipeline.stage_objects import DwBuilder, StageObject
from gradconform.torch_releases import pipelining
from gradconform.torch_releases.names import installed, require

from .torch_stage import group_of_one


class TorchStageObject:
    """One of torch's stages, manual or traced."""

    def __init__(self, stage: Any) -> None:
        """Store a stage that is ready to run."""
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
        """Receive activations as from a stage of the same rank."""
        self._stage.set_local_fwd_input(outputs, mb)

    def backward(self, mb: int, loss: Tensor | None, *, full: bool) -> None:
        """Run the full backward of one chunk, or its first half."""
        self._stage.backward_one_chunk(mb, loss=loss, full_backward=full)

    def take_grads(self, mb: int, behind: StageObject) -> None:
        """Receive gradients as from a stage of the same rank."""
        assert isinstance(behind, TorchStageObject)  # noqa: S101 (all stages of a chain are of one adapter)
        self._stage.set_local_bwd_input(behind._stage.get_local_bwd_output(mb), mb)  # noqa: SLF001 (its own class)

    def weight(self, mb: int) -> None:
        """Run the second half of one chunk's backward."""
        self._stage.backward_weight_one_chunk(mb)

    def kept(self) -> Mapping[str, int]:
        """Return the sizes of a stage's caches. If a name disappears, see ``clear_runtime_states`` in torch."""
        return {cache: len(name.find(self._stage)) for cache, name in pipelining.CACHES.items()}

    def clear(self) -> None:
        """Clear the caches that a schedule clears before a step."""
        self._stage.clear_runtime_states()


class TorchStageObjects:
    """A builder of torch's stages, all in one process."""

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
                module, index, len(modules), example[0].device, input_args=example, output_args=outputs, group=group,
                dw_builder=None if dw_builders is None else dw_builders[index],
            )  # fmt: skip
            pipelining.validate(stage, checked=checked)
            pipelining.make_ready(stage, microbatches, example)
            made.append(TorchStageObject(stage))
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
        """Return the stages of a traced model; raise ``UnsupportedError`` if torch cannot trace on the device."""
        device = example[0].device
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the tracer, on its own parts
                pipe = pipeline(model, example, dict(kwargs), split_spec=dict.fromkeys(cuts, SplitPoint.BEGINNING))
        except Exception as error:
            if device.type == "cpu":
                raise
            msg = f"torch cannot trace a model on {device}: {type(error).__name__}: {error}"
            raise UnsupportedError(msg) from error
        stages = [pipe.build_stage(index, device, group_of_one()) for index in range(pipe.num_stages)]
        for stage in stages:
            pipelining.make_ready(stage, microbatches, example, manual=False)
        return [TorchStageObject(stage) for stage in stages]

    def split_schedule(self, stages: Sequence[StageObject], microbatches: int) -> object:
        """Return torch's zero-bubble schedule of the stages.

        It has no loss, so it runs the backward of each accepted stage. Raises
        :class:`~gradconform.adapter.UnsupportedError` if this torch cannot run the result.
        """
        own = [stage._stage for stage in stages if isinstance(stage, TorchStageObject)]  # noqa: SLF001 (its own class)
        schedule = ScheduleInterleavedZeroBubble(own, microbatches)
        if not all(stage.has_backward for stage in own):
            msg = f"torch {installed()} accepts these stages in {type(schedule).__name__}, which runs on a loss alone"
            raise UnsupportedError(msg)
        return schedule


class TorchScheduleText:
    """Drives torch's functions."""

    name = "torch"

    def __init__(self) -> None:
        """Raise :class:`~gradconform.torch_releases.names.UnavailableError` if torch lacks one of the functions."""
        require(*pipelining.FOR_TEXT)

    def rewritten(self, cell: str) -> str:
        """Parse a cell and print it."""
        return _written(pipelining.action_of(cell))

    def placed(self, rows: Sequence[Sequence[str]], stages: int, microbatches: int) -> Mapping[int, int]:
        """Validate a schedule; torch 2.6 returns no ranks."""
        found: dict[int, int] | None = pipelining.VALIDATE.find()(_parsed(rows), len(rows), stages, microbatches)
        if found is None:
            raise pipelining.no_ranks()
        return found

    def mapping(self, ranks: int, stages: int, style: str) -> Mapping[int, int]:
        """Place stages."""
        found: dict[int, int] = pipelining.PLACE.find()(ranks, stages, style)
        return found

    def merged(self, row: Sequence[str]) -> list[str]:
        """Merge I and W."""
        return [_written(action) for action in pipelining.MERGE.find()([pipelining.action_of(cell) for cell in row])]

    def lowered(self, rows: Sequence[Sequence[str]], stages: int, microbatches: int) -> list[list[str]]:
        """Insert sharding and then communication, as the runtime does."""
        parsed = _parsed(rows)
        validated = pipelining.VALIDATE.find()(parsed, len(rows), stages, microbatches)
        own = {action.stage_index: rank for rank, row in parsed.items() for action in row if action is not None}
        ranks = own if validated is None else validated
        sharded = {rank: pipelining.ADD_UNSHARD.find()(actions) for rank, actions in parsed.items()}
        lowered = pipelining.ADD_SEND.find()(sharded, ranks.__getitem__, stages)
        return [[_written(action) for action in lowered[rank]] for rank in range(len(rows))]


def _parsed(rows: Sequence[Sequence[str]]) -> dict[int, list[Any]]:
    return {rank: [pipelining.action_of(cell) for cell in row] for rank, row in enumerate(rows)}


def _written(action: object) -> str:
    return "" if action is None else str(action)
