"""Wraps a model chunk in Megatron-core's ``TorchFullyShardedDataParallel``, on any device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from gradconform.adapter import needed
from gradconform.runtime import StepSpec

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core.distributed import (
        TorchFullyShardedDataParallel,
        TorchFullyShardedDataParallelConfig,
        torch_fully_sharded_data_parallel,
    )
    from megatron.core.transformer.transformer_config import TransformerConfig


def refusal(spec: StepSpec) -> str:
    """Return what Megatron's training arguments refuse together with the wrapper; empty if it is nothing."""
    refused = {
        "pipeline parallelism": spec.stages > 1,
        "expert parallelism": bool(set(spec.experts.values()) - {"whole"}),
        "tied embeddings": bool(spec.tied),
    }
    named = [what for what, here in refused.items() if here and spec.data_parallel.startswith("fsdp")]
    return f"--use-torch-fsdp2 is not supported with {named[0]}" if named else ""


def fully_sharded(config: TransformerConfig, chunk: nn.Module, spec: StepSpec) -> TorchFullyShardedDataParallel:
    """Return the chunk in the wrapper, which shards its parameters in place."""

    def mesh_of(group: Any, _: str) -> DeviceMesh:
        return DeviceMesh.from_group(group, spec.device.type)

    kept = spec.data_parallel == "fsdp-kept"
    # It makes its mesh for CUDA by name.
    with mock.patch.object(torch_fully_sharded_data_parallel, "DeviceMesh", SimpleNamespace(from_group=mesh_of)):
        return TorchFullyShardedDataParallel(
            config, TorchFullyShardedDataParallelConfig(reshard_after_forward=not kept), chunk
        )
