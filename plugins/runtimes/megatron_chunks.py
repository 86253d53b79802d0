"""Model chunks of Megatron-core: a stage with what its schedules call, in one of its data-parallel wrappers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from gradconform.adapter import needed
from gradconform.runtime import StepSpec

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        TorchFullyShardedDataParallel,
        TorchFullyShardedDataParallelConfig,
        torch_fully_sharded_data_parallel,
    )
    from megatron.core.enums import ModelType
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.transformer_config import TransformerConfig


class Chunk(MegatronModule):  # type: ignore[misc] # megatron-core has no types
    """A stage with the methods that the schedules and ``finalize_model_grads`` call on a model."""

    model_type = ModelType.encoder_or_decoder

    def __init__(
        self, config: TransformerConfig, stage: nn.Module, shared: nn.Parameter | None, *, first: bool, last: bool
    ) -> None:
        super().__init__(config)
        self.stage, self.pre_process, self.post_process = stage, first, last
        self.share_embeddings_and_output_weights = shared is not None
        self._shared, self._received = [shared], None
        if shared is not None and last and not first:
            shared.shared = True  # type: ignore[attr-defined]  # as LanguageModule says it of the copy

    def set_input_tensor(self, received: Any) -> None:
        """Store the input from the previous stage."""
        self._received = received[0] if isinstance(received, list) else received

    def shared_embedding_or_output_weight(self) -> nn.Parameter | None:
        """Return the weight that the first and the last stage share."""
        return self._shared[0]

    def forward(self, x: Tensor, **kwargs: Tensor) -> Tensor:
        """Run the stage on ``x``, or on the received input."""
        output: Tensor = self.stage(x if self.pre_process else self._received, **kwargs)
        return output


def wrapped(
    config: TransformerConfig, spec: StepSpec, index: int, stage: nn.Module, shared: nn.Parameter | None
) -> Any:
    """Return a stage as a model chunk in its wrapper; ``shared`` is the weight that it shares with another stage."""
    chunk = Chunk(config, stage, shared, first=index == 0, last=index == spec.stages - 1)
    if spec.data_parallel.startswith("fsdp"):
        return _fully_sharded(config, chunk, spec)
    return DistributedDataParallel(config, DistributedDataParallelConfig(), chunk, disable_bucketing=index > 0)


def refusal(spec: StepSpec) -> str:
    """Return what Megatron's training arguments refuse together with the wrapper; empty if it is nothing."""
    refused = {
        "pipeline parallelism": spec.stages > 1,
        "expert parallelism": bool(set(spec.experts.values()) - {"whole"}),
        "tied embeddings": bool(spec.tied),
    }
    named = [what for what, here in refused.items() if here and spec.data_parallel.startswith("fsdp")]
    return f"--use-torch-fsdp2 is not supported with {named[0]}" if named else ""


def _fully_sharded(config: TransformerConfig, chunk: nn.Module, spec: StepSpec) -> TorchFullyShardedDataParallel:
    """Return the chunk in the wrapper, which shards its parameters in place."""

    def mesh_of(group: Any, _: str) -> DeviceMesh:
        return DeviceMesh.from_group(group, spec.device.type)

    kept = spec.data_parallel == "fsdp-kept"
    # It makes its mesh for CUDA by name.
    with mock.patch.object(torch_fully_sharded_data_parallel, "DeviceMesh", SimpleNamespace(from_group=mesh_of)):
        return TorchFullyShardedDataParallel(
            config, TorchFullyShardedDataParallelConfig(reshard_after_forward=not kept), chunk
        )
