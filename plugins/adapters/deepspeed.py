"""DeepSpeed's ``PipelineEngine``: the registered target ``deepspeed``.

The engine is made for one process. It is then set to be the second of three stages, or the last one if backward starts
at a loss. It calls no other process before a forward or backward pass on its buffers.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from gradconform.adapter import Capabilities, StageSpec, Tree, UnsupportedError, needed

from .full_only import FULL_ONLY, FullOnlySession, TakingTuples, flat, received
from .torch_stage import group_of_one

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("LOCAL_RANK", "0")  # a launcher would set it
with needed("deepspeed", "pip install 'gradconform[deepspeed]'"):
    import deepspeed
    from deepspeed.pipe import PipelineModule

# It compiles an extension for sums over processes of one machine, for minutes, and there is one process.
vars(importlib.import_module("deepspeed.comm.torch"))["build_shm_op"] = lambda: None

_STAGES = 3


class DeepSpeedSession(FullOnlySession):
    """One engine, driven through ``_exec_forward_pass`` and ``_exec_backward_pass`` as its schedules drive it."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Create the engine; its required optimizer never steps."""
        super().__init__(stage, spec)
        if (ranks := dist.get_world_size() if dist.is_initialized() else 1) > 1:
            msg = f"its engine takes all {ranks} ranks for replicas of the stage, and this adapter can name no others"
            raise UnsupportedError(msg)
        group_of_one()
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False, verbose=False)
        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints how it has cut the layers
            module = PipelineModule(
                layers=[TakingTuples(stage)], num_stages=1, loss_fn=spec.loss_fn, partition_method="uniform"
            )
        trainable = [parameter for parameter in stage.parameters() if parameter.requires_grad]
        # An optimizer of nothing cannot be made.
        optimizer = torch.optim.SGD(trainable or [nn.Parameter(torch.zeros(1))], lr=0.0)
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": spec.n_microbatches,
            "steps_per_print": 10**9,
        }
        self._groups = Groups(module)
        try:
            self._engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer, config=config)
        except BaseException:  # a session that was not opened is never closed
            self._groups.end()
            raise
        self._engine.num_stages = _STAGES
        self._engine.stage_id = _STAGES - 1 if spec.is_last else 0 if spec.is_first else 1
        self._engine._compute_loss = True  # noqa: SLF001 (as train_batch does)
        self._engine.fwd_outputs, self._engine.total_loss, self._engine.total_additional_losses = [], None, None
        self._engine.num_pipe_buffers = 0
        self._engine._reserve_pipe_buffers(spec.n_microbatches)  # noqa: SLF001 (as train_batch does)

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Put the received arguments into buffer ``mb`` and run the forward pass."""
        inputs = received(args)
        buffers = self._engine.pipe_buffers
        buffers["inputs"][mb] = inputs if len(inputs) > 1 else inputs[0]
        buffers["labels"][mb] = target
        self._engine._exec_forward_pass(mb)  # noqa: SLF001 (as above)
        self._forwards[mb] = inputs, self._engine.loss if self._spec.is_last else None
        return buffers["outputs"][mb]

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Put the received gradients into ``grad_layer`` and run the backward pass."""
        inputs, loss = self._forwards.pop(mb)
        buffers = self._engine.pipe_buffers
        self._engine.grad_layer, self._engine.loss = _layer(buffers["outputs"][mb], flat(output_grads)), loss
        self._engine._exec_backward_pass(mb)  # noqa: SLF001 (as above)
        buffers["inputs"][mb] = None  # as _exec_send_grads does
        self._engine.grad_layer = self._engine.loss = None
        return tuple(arg.grad if isinstance(arg, Tensor) else None for arg in inputs)

    def close(self) -> None:
        """Remove the engine and its hooks, and end its process groups.

        Each group has its own threads: those of a whole run would be ten thousand.
        """
        super().close()
        self._engine.destroy()
        self._groups.end(self._engine)


class Groups:
    """The process groups that deepspeed creates for one module and never ends."""

    def __init__(self, module: PipelineModule) -> None:
        """Find the groups of this process."""
        grid = module.mpu()
        self._holders: list[Any] = [module, grid]
        own = (grid.ds_model_proc_group, grid.dp_proc_group, grid.pp_proc_group, grid.slice_proc_group)
        tied = [each["group"] for each in module.tied_comms.values()]
        self._held = [module.world_group, *own, *tied]

    def end(self, *holders: Any) -> None:
        """End the groups and remove them from ``holders``; a group's threads end with its object."""
        for group in self._held:
            torch.distributed.destroy_process_group(group)
        for holder in (*self._holders, *holders):
            names = [name for name, value in vars(holder).items() if any(value is group for group in self._held)]
            vars(holder).update(dict.fromkeys(names))
        self._held.clear()


def _layer(outputs: Tree, grads: Tree) -> Tree:
    """Return the value that a receive puts into ``grad_layer``: a tensor for a tensor, else one per floating output."""
    if isinstance(outputs, Tensor):
        return grads[0] if isinstance(grads, tuple) and len(grads) == 1 else grads
    if not isinstance(outputs, tuple) or not all(isinstance(output, Tensor) for output in outputs):
        msg = "what one stage of deepspeed sends to the next are tensors alone, in one tuple"
        raise UnsupportedError(msg)
    if not isinstance(grads, tuple) or len(grads) != len(outputs):
        return grads
    return tuple(grad for grad, output in zip(grads, outputs, strict=True) if output.is_floating_point())


class DeepSpeedAdapter:
    """The adapter of DeepSpeed: it claims stages with only tensors."""

    name = "deepspeed"
    drives = "deepspeed.runtime.pipe.engine"
    capabilities = Capabilities(
        **FULL_ONLY,
        loss_divided_by_microbatches=True,
        nested_output=False,
        nontensor_input=False,
        parameter_input=False,  # what a stage receives is a tensor of its own
    )

    def open(self, stage: nn.Module, spec: StageSpec) -> DeepSpeedSession:
        """Return a session on ``stage``."""
        return DeepSpeedSession(stage, spec)
