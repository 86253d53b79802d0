"""nanotron's ``PipelineEngine``: the registered runtime ``nanotron``.

The step is that of its trainer, which cannot be imported without flash-attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gradconform.adapter import UnsupportedError, needed
from gradconform.runtime import Batch, Kept, ModuleSession, StepSpec, scale_auxiliary, scale_second, set_second_loss

from .nanotron_layers import divided_layers, divided_loss
from .parts import divided_words

with needed("nanotron", "pip install 'gradconform[nanotron]'"):
    from nanotron.optim.clip_grads import clip_grad_norm
    from nanotron.parallel import ParallelContext
    from nanotron.parallel.parameters import NanotronParameter
    from nanotron.parallel.pipeline_parallel.block import PipelineBlock
    from nanotron.parallel.pipeline_parallel.engine import (
        AllForwardAllBackwardPipelineEngine,
        OneForwardOneBackwardPipelineEngine,
    )
    from nanotron.parallel.pipeline_parallel.p2p import P2P
    from nanotron.parallel.pipeline_parallel.state import PipelineTrainBatchState
    from nanotron.parallel.pipeline_parallel.tensor_pointer import TensorPointer
    from nanotron.parallel.tied_parameters import (
        create_pg_for_tied_weights,
        sync_tied_weights_gradients,
        tie_parameters,
    )


class NanotronRuntime:
    """The runtime of nanotron: each stage is a block of its pipeline."""

    name = "nanotron"
    claims: Mapping[str, str] = {
        "schedule": "1f1b gpipe",  # "We assume that each rank has a single contiguous list of blocks"
        "data_parallel": "unwrapped ddp",
        "steps": "one-step accumulated zeroed evaluated evaluated-first clipped",  # each step of its trainer reduces
        "tensor_parallel": "whole-layers column-row vocabulary",  # it divides no rows that each rank has
        "precision": "unmixed",
        "experts": "dense",
        "use": "always-used",  # its trainer reads every gradient after a step
        "context": "whole-sequences",
    }

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> NanotronSession:
        """Create the groups, the blocks and the engine."""
        if spec.clips and spec.dtype != torch.float32:
            msg = f'expected float32 ("Norms are computed in fp32 precision"), got {spec.dtype}'
            raise UnsupportedError(msg)
        return NanotronSession(stages, spec)


class NanotronSession(ModuleSession):
    """One rank of an engine."""

    def __init__(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Create the groups and the model, on all ranks at the same time."""
        super().__init__(stages, spec)
        self.context = _groups(spec.tensor_ranks, len(spec.placement), spec.replicas)
        self._frozen = {name for name, one in self.named("named_parameters") if not one.requires_grad}
        #: This rank's parts of the parameters that ranks divide.
        self.parts = dict(divided_layers(stages, spec, self.context.tp_pg))
        self._loss_of = spec.loss
        if (words := divided_words(spec, self.parts)) is not None:
            self._loss_of = partial(divided_loss, spec, words, self.context.tp_pg)
            set_second_loss(stages.values(), self._loss_of)
        self._losses: list[Tensor] = []
        self._weigh(1.0, 1.0, 1.0)
        self.unwrapped = _Model(stages, spec, P2P(self.context.pp_pg, spec.device), self._loss)
        self._mark_parameters()
        self.model: nn.Module = self.unwrapped
        if spec.replicas > 1:
            group = self.context.dp_pg
            self.model = DistributedDataParallel(self.unwrapped, process_group=group, broadcast_buffers=False)
        engines = {"1F1B": OneForwardOneBackwardPipelineEngine, "GPipe": AllForwardAllBackwardPipelineEngine}
        self.engine = engines[spec.schedule]()

    def _mark_parameters(self) -> None:
        """Make all parameters nanotron's, tied to those of the ranks that have the same, as its trainer does."""
        model, spec, context = self.unwrapped, self.spec, self.context
        made: dict[nn.Parameter, nn.Parameter] = {}
        for module in model.modules():
            for name, one in list(module.named_parameters(recurse=False)):
                if not isinstance(one, NanotronParameter):
                    setattr(module, name, made.setdefault(one, NanotronParameter(one, one.requires_grad)))
        if spec.tied:
            of_stages = context.world_rank_matrix[0, :, spec.replica, spec.tensor_rank]
            ties = [(full, (int(of_stages[_owner(spec, int(full.partition(".")[0]))]),)) for full in spec.tied]
            tie_parameters(model, [(_name(full), ranks) for full, ranks in ties], context, dist.ReduceOp.SUM)
        same = tuple(sorted(dist.get_process_group_ranks(context.tp_pg)))
        divided = set(map(_name, self.parts))
        known: list[tuple[str, Any]] = list(model.named_parameters())
        for name, one in known:
            if name not in divided and not one.is_tied:
                # Each tensor rank computes the whole gradient.
                tie_parameters(model, [(name, same)], context, None)
        create_pg_for_tied_weights(model, context)

    def _weigh(self, tokens: float, positions: float, second_tokens: float) -> None:
        """Set the factors that turn the engine's mean over micro-batches and replicas into the requested loss."""
        count = self.spec.microbatches
        whole = 1.0 if self.spec.reduction == "mean" else float(count * self.spec.replicas)
        self._weight = whole / tokens
        scale_auxiliary(self.modules.values(), whole / positions / count)
        scale_second(self.modules.values(), whole / second_tokens / count)

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        loss = self._loss_of(output, target)
        self._losses.append(loss.detach().clone())
        return loss * self._weight

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule, and sum the gradients of tied weights."""
        spec = self.spec
        if spec.reduction == "tokens":
            second = batch.second_tokens(spec.counts, spec.second_target) if spec.second_target else 1
            tokens = torch.tensor([batch.tokens(spec.counts), batch.positions(), second], device=spec.device)
            dist.all_reduce(tokens, group=self.context.dp_pg)
            self._weigh(*map(float, tokens))
        self._refuse_second_sum()
        self._losses = []
        self.engine.train_batch_iter(
            model=self.model,
            pg=self.context.pp_pg,
            batch=self._loaded(batch),
            nb_microbatches=batch.microbatches,
            grad_accumulator=None,
        )
        # Without a wrapper, its trainer averages here over replicas: over one, which gloo refuses.
        sync_tied_weights_gradients(self.unwrapped, self.context, grad_accumulator=None)
        return self._of_each()

    def _refuse_second_sum(self) -> None:
        """Raise if tied weights have gradients of an earlier step: they were summed, and would be again."""
        if self.spec.tied and len(self.spec.placement) > 1 and self._has_grads():
            msg = "its trainer frees gradients after each step: those of tied weights would be summed over ranks again"
            raise UnsupportedError(msg)

    def _has_grads(self) -> bool:
        return any(one.grad is not None for _, one in self.named("named_parameters"))

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Run the forwards."""
        self._losses = []
        self.engine.validate_batch_iter(self.model, self._loaded(batch), batch.microbatches)
        return self._of_each()

    def _of_each(self) -> list[Tensor] | None:
        return self._losses if self.spec.is_last else None

    def _loaded(self, batch: Batch) -> Iterator[dict[str, Tensor]]:
        """Return the data loader's values for each micro-batch."""
        self.unwrapped.set_arguments(batch.kwargs)
        return ({"x": mb.x, "target": mb.target, **mb.kwargs} for mb in batch.split())

    def params(self) -> dict[str, Kept]:
        """Return the parameters; those that ranks divide are shards."""
        return self._as_shards(super().params())

    def param_grads(self) -> dict[str, Kept]:
        """Return the gradients; those of divided parameters are shards."""
        without = self._frozen if self._has_grads() else self.parts
        return self._as_shards(super().param_grads()) | {name: None for name in self.parts if name in without}

    def _as_shards(self, kept: dict[str, Kept]) -> dict[str, Kept]:
        empty = torch.empty(0, dtype=self.spec.dtype, device=self.spec.device)
        divided = {name: kept.get(name, empty) for name in self.parts}
        return kept | {name: self.parts[name].shard(value) for name, value in divided.items() if value is not None}

    def clip(self, max_norm: float) -> float:
        """Clip as its trainer does."""
        trained = [(name, one) for name, one in self.unwrapped.named_parameters() if one.requires_grad]
        return float(clip_grad_norm(self.context.mp_pg, trained, max_norm, grad_accumulator=None))

    def held(self) -> dict[str, int]:
        """Return the sizes of the engine's queues, which belong to their class."""
        queues = {name: getattr(PipelineTrainBatchState, name) for name in dir(PipelineTrainBatchState)}
        return {name.replace("_", " "): len(one) for name, one in queues.items() if hasattr(one, "popleft")}


class _Model(nn.Module):
    """The whole model: a block for each stage, and one for the loss. Each rank builds its own blocks."""

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        spec: StepSpec,
        p2p: P2P,
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.own = spec.pipeline_rank
        self.blocks = nn.ModuleList(
            _block(p2p, partial(stages.__getitem__, index), _owner(spec, index), {"x"}, "x")
            for index in range(spec.stages)
        )
        self.last = _block(p2p, lambda: loss, _owner(spec, spec.stages - 1), {"output", "target"}, "loss")

    def set_arguments(self, names: Iterable[str]) -> None:
        """Set the names of the keyword arguments that each stage receives."""
        for block in self.blocks:
            vars(block)["module_input_keys"] = {"x", *names}

    def forward(self, x: Tensor, target: Tensor, **arguments: Tensor) -> Any:
        """Return the loss on the last rank, and a pointer to it on others."""
        passed: Any = self._on(self.blocks[0], x)
        for block in self.blocks:
            own = {name: self._on(block, value) for name, value in arguments.items()}
            passed = block(x=passed, **own)["x"]
        return self.last(output=passed, target=self._on(self.last, target))

    def _on(self, block: PipelineBlock, loaded: Tensor) -> Any:
        """Return a loaded tensor on the rank of a block, and a pointer on others, as its data loaders do."""
        return loaded if block.rank == self.own else TensorPointer(block.rank)


def _block(p2p: P2P, build: Callable[[], Any], rank: int, inputs: set[str], output: str) -> PipelineBlock:
    """Return a block that its rank has built."""
    made = PipelineBlock(p2p, build, {}, inputs, {output})
    made.build_and_set_rank(rank)
    return made


def _owner(spec: StepSpec, index: int) -> int:
    """Return the pipeline rank of a stage."""
    return next(rank for rank, row in enumerate(spec.placement) if index in row)


def _name(full: str) -> str:
    """Return the name in the whole model of a parameter with a full name."""
    index, _, name = full.partition(".")
    return f"blocks.{index}.pp_block.{name}"


class _Groups(ParallelContext):  # type: ignore[misc] # nanotron has no types
    """Its process groups on another device than one of CUDA."""

    def set_device(self) -> None:
        """Keep the device."""


@lru_cache(maxsize=8)
def _groups(tensor_ranks: int, ranks: int, replicas: int) -> ParallelContext:
    """Return the groups, made once: it caches ranks by group."""
    return _Groups(tensor_ranks, ranks, replicas)
