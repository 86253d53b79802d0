"""Megatron-core's ``get_forward_backward_func``: the registered runtime ``megatron-core``.

Its schedules create tensors on ``cuda`` by name; here these are created on the stages' device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from gradconform.adapter import UnsupportedError, needed
from gradconform.runtime import (
    Batch,
    ModuleSession,
    StepSpec,
    balance_experts,
    scale_auxiliary,
    scale_second,
    set_second_loss,
)

from .megatron_chunks import refusal, wrapped
from .megatron_layers import divided_experts, divided_layers, divided_loss
from .megatron_norm import joint_norm
from .named_device import NamedDevice
from .parts import divided_words

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core import parallel_state
    from megatron.core.distributed import finalize_model_grads
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig


class MegatronRuntime:
    """The runtime of Megatron-core: each stage is a model chunk in its own wrapper."""

    name = "megatron-core"
    claims: Mapping[str, str] = {
        "schedule": "1f1b interleaved-1f1b",
        "data_parallel": "unwrapped ddp fsdp fsdp-kept",
        "precision": "unmixed autocast",
        # Its attention refuses sequences over ranks: "Context parallelism is only supported by TEDotProductAttention".
        "context": "whole-sequences",
    }

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> MegatronSession:
        """Raise for compositions that the schedules refuse, then create the groups and wrap the stages."""
        ranks, chunks = len(spec.placement), len(stages)
        if chunks > 1 and ranks == 1:
            msg = "non-pipeline-parallel schedule does not support model chunking"
            raise UnsupportedError(msg)
        if chunks > 1 and (spec.microbatches < ranks or 0 < spec.microbatches % ranks < ranks):
            msg = f"interleaving requires a multiple of {ranks} micro-batches, got {spec.microbatches}"
            raise UnsupportedError(msg)
        if refused := refusal(spec):
            raise UnsupportedError(refused)
        return MegatronSession(stages, spec)


class MegatronSession(ModuleSession):
    """One rank."""

    def __init__(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> None:
        """Create the process groups, the configuration and the wrapped chunks."""
        super().__init__(stages, spec)
        self._shards_data = spec.data_parallel.startswith("fsdp")
        self._gradients = self._finalized = False
        ranks, chunks = len(spec.placement), len(stages)
        over_tensor_ranks = "tensor" in spec.experts.values()
        over_replicas = "replicas" in spec.experts.values()
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=spec.tensor_ranks,
            pipeline_model_parallel_size=ranks,
            virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
            expert_model_parallel_size=spec.replicas
            if over_replicas
            else spec.tensor_ranks
            if over_tensor_ranks
            else 1,
            expert_tensor_parallel_size=1 if over_tensor_ranks else spec.tensor_ranks,
            create_gloo_process_groups=False,
        )
        self.config = _configuration(spec, chunks)
        #: This rank's parts of the parameters that ranks divide.
        self.parts = dict(divided_experts(stages, spec))
        with _on(spec.device):
            self.parts |= divided_layers(stages, spec, self.config)
            self._loss_of = spec.loss
            if (words := divided_words(spec, self.parts)) is not None:
                self._loss_of = partial(divided_loss, spec, words)
                set_second_loss(stages.values(), self._loss_of)
            self.chunks = [self._chunk(index, stage) for index, stage in sorted(stages.items())]
        self.config.no_sync_func = [one.no_sync for one in self.chunks] if chunks > 1 else self.chunks[0].no_sync
        self.config.finalize_model_grads_func = finalize_model_grads
        scale_auxiliary(stages.values(), self._factor() / spec.microbatches)
        scale_second(stages.values(), self._factor() / spec.microbatches)

    def _chunk(self, index: int, stage: nn.Module) -> Any:
        tied = [name for name in self.spec.tied if name.startswith(f"{index}.")]
        shared = dict(self.named("named_parameters"))[tied[0]] if tied else None
        return wrapped(self.config, self.spec, index, stage, shared)

    def _factor(self) -> float:
        """Return the factor that turns the schedule's mean over micro-batches and replicas into a sum."""
        return float(self.spec.microbatches * self.spec.replicas) if self.spec.reduction == "sum" else 1.0

    def step(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule, and finalize the gradients."""
        if self._finalized and self._finalizing_changes():
            msg = (
                'zero_grad_buffer "needs to be called at the beginning of each training iteration": the gradients of '
                "the step before would be reduced twice"
            )
            raise UnsupportedError(msg)
        losses = self._train(batch)
        self._finalized = True
        return losses

    def _finalizing_changes(self) -> bool:
        """Return whether finalizing changes gradients: without other ranks that reduce them, they only add up."""
        spec = self.spec
        # fully_shard reduces gradients in the backward, before they are accumulated.
        over_replicas = spec.replicas > 1 and not self._shards_data
        over_ranks = over_replicas or self.config.sequence_parallel or (spec.tied and len(spec.placement) > 1)
        return bool(over_ranks) or spec.reduction == "tokens"

    def _train(self, batch: Batch) -> list[Tensor] | None:
        self._gradients = True
        return self._run(batch, forward_only=False)

    def accumulate(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule, and leave its gradients to be finalized with the next step."""
        if self.spec.reduction == "tokens":
            msg = "finalized gradients are divided by the tokens of the last step"
            raise UnsupportedError(msg)
        finalize, self.config.finalize_model_grads_func = self.config.finalize_model_grads_func, None
        losses = self._train(batch)
        self.config.finalize_model_grads_func = finalize
        return losses

    def evaluate(self, batch: Batch) -> list[Tensor] | None:
        """Run the schedule without its backward."""
        with torch.no_grad():
            return self._run(batch, forward_only=True)

    def _run(self, batch: Batch, *, forward_only: bool) -> list[Tensor] | None:
        run = get_forward_backward_func()
        if self.spec.reduction == "tokens":
            # Later, all gradients are divided by the tokens of the loss.
            own = [batch.tokens(self.spec.counts), batch.positions()]
            if self.spec.second_target:
                own.append(batch.second_tokens(self.spec.counts, self.spec.second_target))
            tokens = self._total(torch.tensor(own, device=self.spec.device))
            scale_auxiliary(self.modules.values(), float(tokens[0] / tokens[1]))
            scale_second(self.modules.values(), float(tokens[0] / tokens[-1]))
        with _on(self.spec.device):
            results = run(
                forward_step_func=self._forward_step,
                data_iterator=[batch.split() for _ in self.chunks],
                model=self.chunks,
                num_microbatches=batch.microbatches,
                seq_length=1,  # stages say the shapes of what they send
                micro_batch_size=1,
                forward_only=forward_only,
            )
        return [one["loss"] for one in results] if self.spec.is_last else None

    def _forward_step(self, batches: Iterator[Batch], model: nn.Module) -> tuple[Tensor, Callable[..., Any]]:
        batch = next(batches)
        return model(batch.x, **batch.kwargs), partial(self._loss, batch.target)

    def _loss(self, target: Tensor, output: Tensor) -> tuple[Any, ...]:
        loss = self._loss_of(output, target)
        logged = {"loss": loss.detach().clone()}
        if self.spec.reduction == "tokens":
            return loss, self.spec.counts(target).sum().int(), logged
        return loss * self._factor(), logged

    def zero_grad(self) -> None:
        """Zero the buffers, and free other gradients as its optimizers do."""
        self._gradients = self._finalized = False
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        super().zero_grad()

    def param_grads(self) -> dict[str, Any]:
        """Return ``main_grad``; None before the first step instead of zeros."""
        found = {name: _grad_of(one) for name, one in self.named("named_parameters")}
        return self._as_shards(
            {
                name: grad if self._gradients or (grad is not None and bool(grad.any())) else None
                for name, grad in found.items()
            }
        )

    def params(self) -> dict[str, Any]:
        """Return the parameters; those that ranks divide are shards."""
        return self._as_shards(super().params())

    def _as_shards(self, kept: dict[str, Any]) -> dict[str, Any]:
        divided = {name: value for name, value in kept.items() if name in self.parts and value is not None}
        return kept | {name: self.parts[name].shard(_unsharded(value)) for name, value in divided.items()}

    def clip(self, max_norm: float) -> float:
        """Clip as its optimizers do."""
        parameters = [one for _, one in self.named("named_parameters") if one.requires_grad]
        for one in parameters:
            one.decoupled_grad = _grad_of(one)
        with _on(self.spec.device):
            norm = joint_norm(parameters, _grad_of)
            clip_grad_by_total_norm_fp32(parameters, max_norm, norm, use_decoupled_grad=True)
        return norm

    def update(self, lr: float) -> None:
        """Step with ``main_grad`` as ``.grad``, as its optimizers do."""
        buffered = [one for _, one in self.named("named_parameters") if hasattr(one, "main_grad")]
        for one in buffered:
            one.grad = one.main_grad
        super().update(lr)
        for one in buffered:
            one.grad = None
        balance_experts(self.modules.values(), self._total)

    def _total(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over replicas."""
        total = value.clone()
        dist.all_reduce(total, group=parallel_state.get_data_parallel_group())
        return total

    def close(self) -> None:
        """Free the groups."""
        parallel_state.destroy_model_parallel()


def _grad_of(parameter: Any) -> Any:
    """Return the gradient as ``finalize_model_grads`` finds it."""
    return parameter.main_grad if hasattr(parameter, "main_grad") else parameter.grad


def _unsharded(value: Tensor) -> Tensor:
    """Return a tensor as all replicas have it."""
    whole: Tensor = value.full_tensor() if isinstance(value, DTensor) else value
    return whole


def _configuration(spec: StepSpec, chunks: int) -> TransformerConfig:
    """Return the configuration; its layer sizes belong to no layer here."""
    ranks = len(spec.placement)
    return TransformerConfig(
        num_layers=spec.stages,
        hidden_size=spec.tensor_ranks,
        num_attention_heads=spec.tensor_ranks,
        tensor_model_parallel_size=spec.tensor_ranks,
        # As its warning requires: "When using expert parallelism and tensor parallelism for training, sequence
        # parallelism must be used".
        sequence_parallel="sequence" in spec.shared.values() or (spec.tensor_ranks > 1 and bool(spec.experts)),
        perform_initialization=False,
        pipeline_model_parallel_size=ranks,
        virtual_pipeline_model_parallel_size=chunks if chunks > 1 else None,
        pipeline_dtype=spec.dtype,
        params_dtype=spec.dtype,
        variable_seq_lengths=True,
        moe_token_dispatcher_type="alltoall",  # noqa: S106 (no password: required with variable lengths)
        enable_autocast=spec.precision == "autocast",
        autocast_dtype=torch.bfloat16,
        calculate_per_token_loss=spec.reduction == "tokens",
        # As in its training loop: two interleaved ranks must not batch their sends to each other.
        overlap_p2p_comm=chunks > 1,
        batch_p2p_comm=chunks == 1,
    )


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Redirect ``cuda`` to ``device`` in a context."""
    autocast = torch.autocast
    with (
        NamedDevice(device),
        mock.patch.object(torch.cuda, "current_device", return_value=device),
        mock.patch.object(torch.cuda, "synchronize", return_value=None),
        mock.patch.object(torch, "autocast", lambda _, **options: autocast(device.type, **options)),
    ):
        yield
