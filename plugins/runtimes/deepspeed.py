"""DeepSpeed's ``PipelineEngine``: the registered runtime ``deepspeed``.

``train_batch`` is a whole step: it calls the optimizer, and then clears all gradients. The optimizer here changes no
parameter, and stores the gradients.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradconform.adapter import UnsupportedError, needed
from gradconform.plugins.adapters.deepspeed import Groups
from gradconform.runtime import Batch, Kept, ModuleSession, Shard, StepSpec, balance_experts, scale_auxiliary

from .deepspeed_experts import divide

with needed("deepspeed", "pip install 'gradconform[deepspeed]'"):
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from deepspeed.runtime.utils import clip_grad_norm_


class DeepSpeedRuntime:
    """The runtime of DeepSpeed: each stage is a layer, and each rank has one."""

    name = "deepspeed"
    claims: Mapping[str, str] = {
        "schedule": "1f1b",
        "data_parallel": "unwrapped ddp",  # refused: "ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
        "steps": "one-step zeroed evaluated-first clipped",  # train_batch clears its optimizer's gradients
        # Refused: autograd raises if an output of the first stage is a floating tensor without a gradient. A frozen
        # stage has such outputs, and so has one that passes an argument on.
        "weights": "all frozen-layers tied",
        "arguments": "positional",
        "tensor_parallel": "whole-layers",
        "precision": "unmixed",
        # Seeds of dropout are arguments.
        "layers": "plain checkpoint reentrant-checkpoint selective-checkpoint batch-norm",
        "experts": "dense whole-experts experts-over-replicas",
        "use": "always-used",
        "context": "whole-sequences",
        # Targets of a second loss are arguments.
        "predictions": "one-prediction",
    }

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> DeepSpeedSession:
        """Make the engine of this rank."""
        if spec.dtype != torch.float32:
            msg = f"expected float32 (other dtypes are modes of its configuration), got {spec.dtype}"
            raise UnsupportedError(msg)
        if get_accelerator().device_name() != spec.device.type:
            msg = f"DS_ACCELERATOR says {get_accelerator().device_name()!r}, and stages are on {spec.device.type!r}"
            raise UnsupportedError(msg)
        if spec.experts and len(spec.placement) > 1:
            msg = "a stage passes one tensor on, and a second one chooses the experts of the next"
            raise UnsupportedError(msg)
        return DeepSpeedSession(stages, spec)


class DeepSpeedSession(ModuleSession):
    """One rank of an engine."""

    def __init__(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Create the layers and the engine, on all ranks at the same time."""
        #: The number of experts in each parameter whose experts are divided over replicas.
        self.divided = dict(divide(stages, spec))
        super().__init__(stages, spec)
        self._losses: list[Tensor] = []
        self._weight = self._weight_of(1.0)
        scale_auxiliary(stages.values(), self._weight / spec.microbatches)  # no loss of an inner stage is divided
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        deepspeed.init_distributed(dist.get_backend(), auto_mpi_discovery=False, verbose=False)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints how it has cut the layers
            module = PipelineModule(
                layers=list(self._layers()),
                num_stages=len(spec.placement),
                loss_fn=self._loss,
                partition_method=f"type:{_Layer.__name__}",
                dynamic_shape=True,
            )
        self.groups = Groups(module)
        self.optimizer = _HandingOn([one for _, one in self.named("named_parameters") if one.requires_grad])
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": spec.microbatches,
            "gradient_clipping": 0.0,  # it clips to 1.0 where nothing is said
            "steps_per_print": 10**9,
        }
        self.engine, *_ = deepspeed.initialize(model=module, optimizer=self.optimizer, config=config)

    def _layers(self) -> Iterator[LayerSpec]:
        """Yield the layers of each stage on its rank; a weight of two stages is a tied layer next to each."""
        own = dict(self.named("named_parameters"))
        stages = [LayerSpec(_Layer, self.modules.get(index)) for index in range(self.spec.stages)]
        tied = [
            TiedLayerSpec("tied", _Weight, own.get(name), forward_fn=_unchanged, tied_weight_attr="weight")
            for name in self.spec.tied
        ]
        yield from [*tied[:1], *stages, *tied[1:]]

    def _weight_of(self, tokens: float) -> float:
        """Return the factor that turns the engine's mean over micro-batches and replicas into the requested loss."""
        if self.spec.reduction == "mean":
            return 1.0
        return self.spec.microbatches * self.spec.replicas / tokens

    def _loss(self, output: Tensor, target: Tensor) -> Tensor:
        loss = self.spec.loss(output, target)
        self._losses.append(loss.detach())
        return loss * self._weight

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Train a batch, and restore the gradients that the optimizer received."""
        if self.spec.reduction == "tokens":
            tokens = torch.tensor([batch.tokens(self.spec.counts), batch.positions()], device=self.spec.device)
            dist.all_reduce(tokens, group=self.engine.grid.get_data_parallel_group())
            self._weight = self._weight_of(float(tokens[0]))
            scale_auxiliary(self.modules.values(), self._weight_of(float(tokens[1])) / self.spec.microbatches)
        self.engine.train_batch(self._loaded(batch))
        for parameter, grad in self.optimizer.given.items():
            parameter.grad = grad
        return self._of_each()

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Evaluate a batch."""
        self.engine.eval_batch(self._loaded(batch))
        return self._of_each()

    def _of_each(self) -> list[Tensor] | None:
        return self._losses if self.spec.is_last else None

    def params(self) -> dict[str, Kept]:
        """Return the parameters; experts are shards."""
        return self._as_shards(super().params())

    def param_grads(self) -> dict[str, Kept]:
        """Return the gradients; those of experts are shards."""
        return self._as_shards(super().param_grads())

    def _as_shards(self, kept: dict[str, Kept]) -> dict[str, Kept]:
        shards = {
            name: Shard(value, len(value) * self.spec.replica, self.divided[name])
            for name, value in kept.items()
            if name in self.divided and value is not None
        }
        return kept | shards

    def update(self, lr: float) -> None:
        """Make a step of SGD, and update the biases of routers."""
        super().update(lr)
        if self.spec.experts:
            balance_experts(self.modules.values(), self._total)

    def _total(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over replicas."""
        total = value.clone()
        dist.all_reduce(total, group=self.engine.grid.get_data_parallel_group())
        return total

    def _loaded(self, batch: Batch) -> Iterator[tuple[Tensor | tuple[Tensor, Tensor], Tensor]]:
        """Return the data loader's values for each micro-batch."""
        self._losses = []
        if self.spec.experts:
            return (((mb.x, mb.kwargs["affinity"]), mb.target) for mb in batch.split())
        return ((mb.x, mb.target) for mb in batch.split())

    def clip(self, max_norm: float) -> float:
        """Clip as the engine does if its configuration requires it."""
        norm = clip_grad_norm_(parameters=self.engine.module.parameters(), max_norm=max_norm, mpu=self.engine.mpu)
        return float(norm)

    def held(self) -> dict[str, int]:
        """Return the sizes of the pipeline's buffers, which each step fills again."""
        return {
            f"the {name} of the pipeline": sum(slot is not None for slot in slots)
            for name, slots in self.engine.pipe_buffers.items()
        }

    def close(self) -> None:
        """Free the engine and its process groups."""
        self.engine.destroy()
        self.groups.end(self.engine)


class _HandingOn(torch.optim.SGD):
    """An optimizer that changes nothing."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.0)
        self.given: dict[nn.Parameter, Tensor | None] = {}

    def step(self, closure: Any = None) -> None:  # type: ignore[override] # DeepSpeed takes no loss from it
        """Keep the gradients."""
        del closure
        self.given = {one: one.grad for group in self.param_groups for one in group["params"]}


class _Layer(nn.Module):
    """A stage, under the layer name that assigns it to a rank."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, received: Tensor | tuple[Tensor, Tensor]) -> Tensor:
        """Call the stage; with experts, its second input chooses them."""
        x, *affinity = received if isinstance(received, tuple) else (received,)
        output: Tensor = self.stage(x, **({"affinity": affinity[0]} if affinity else {}))
        return output


class _Weight(nn.Module):
    """A weight that stages on two ranks share."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight


def _unchanged(tied: _Weight, received: Tensor) -> Tensor:
    del tied
    return received
