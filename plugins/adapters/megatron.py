"""Megatron-core: the registered targets ``megatron-core``, ``megatron-core-deallocated`` and ``megatron-core-layers``.

The first two drive its backward step, the last its linear layer with a frozen weight.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gradconform.adapter import Capabilities, StageSpec, Tree, UnsupportedError, needed
from gradconform.reference.autograd import AutogradSession
from gradconform.target.layer_swap import swap
from gradconform.trees import as_tuple

from .full_only import FULL_ONLY, FullOnlySession, flat, handed_on, received

with needed("megatron-core", "pip install 'gradconform[megatron-core]'"):
    from megatron.core import ModelParallelConfig
    from megatron.core.enums import ModelType
    from megatron.core.pipeline_parallel.schedules import backward_step, deallocate_output_tensor
    from megatron.core.tensor_parallel.layers import linear_with_frozen_weight


class MegatronSession(FullOnlySession):
    """A session that calls the backward step as ``forward_backward_pipelining_without_interleaving`` does."""

    def __init__(self, stage: nn.Module, spec: StageSpec, *, deallocate: bool) -> None:
        """Create the configuration of the step."""
        super().__init__(stage, spec)
        self._config = ModelParallelConfig(deallocate_pipeline_outputs=deallocate)

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Run the stage on received tensors; returned outputs are separate from stored ones, and may be freed."""
        outputs = super().forward(mb, received(args), target)
        if isinstance(outputs, dict):
            msg = "a step takes a tensor or a list of them, and no dict"
            raise UnsupportedError(msg)
        sent = handed_on(flat(outputs)) if isinstance(outputs, (Tensor, tuple, list)) else outputs
        # As the schedule does: the first output alone.
        deallocate_output_tensor(as_tuple(self._forwards[mb][1])[0], self._config.deallocate_pipeline_outputs)
        return sent[0] if isinstance(outputs, Tensor) else sent

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run a backward step; None means an input that requires no gradient, as in the first stage."""
        args, outputs = self._forwards.pop(mb)
        inputs = [arg if isinstance(arg, Tensor) and arg.requires_grad else None for arg in args]
        grads = None if output_grads is None else list(flat(output_grads))
        found = backward_step(inputs, list(as_tuple(outputs)), grads, ModelType.encoder_or_decoder, self._config)
        return tuple(found)


#: Stages take and give tensors, or lists of them.
CLAIMS: dict[str, Any] = {
    **FULL_ONLY,
    "nested_output": False,
    "nontensor_input": False,
    "parameter_input": False,  # what a stage receives is a tensor of its own
}


class MegatronAdapter:
    """The adapter of the step without flags."""

    name = "megatron-core"
    drives = "megatron.core.pipeline_parallel.schedules"
    capabilities = Capabilities(**CLAIMS)
    deallocate = False

    def open(self, stage: nn.Module, spec: StageSpec) -> MegatronSession:
        """Return a session on ``stage``."""
        return MegatronSession(stage, spec, deallocate=self.deallocate)


class MegatronDeallocatedAdapter(MegatronAdapter):
    """The adapter of ``deallocate_pipeline_outputs``, which calls the engine without torch's shape checks."""

    name = "megatron-core-deallocated"
    capabilities = Capabilities(
        **CLAIMS,
        view_output=False,  # refused: "counter-productive to free a view of another tensor"
        module_hooks=False,  # with the same words: such a hook makes a view of the output
    )
    deallocate = True


class MegatronLinear(nn.Linear):
    """A Linear that computes as ``ColumnParallelLinear`` on one rank if its weight is frozen, else as torch's."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 (nn.Linear's own name)
        """Multiply, and add the bias."""
        if self.weight.requires_grad:
            return super().forward(input)
        result: Tensor = linear_with_frozen_weight(
            input,
            self.weight,
            self.bias,
            gradient_accumulation_fusion=False,
            allreduce_dgrad=False,
            sequence_parallel=False,
            tp_group=None,
        )
        return result


class MegatronLayersAdapter:
    """Plain autograd over a stage whose frozen Linears are megatron-core's."""

    name = "megatron-core-layers"
    drives = "megatron.core.tensor_parallel.layers"
    capabilities = Capabilities(
        **FULL_ONLY,
        none_output_grad=True,
        autocast=False,  # the bias is added in its own dtype
        changed_in_flight=False,  # the layers read their weights in the backward
        shared_module=False,  # two sessions would swap the layers of one module twice
    )

    def open(self, stage: nn.Module, spec: StageSpec) -> AutogradSession:
        """Return a session on ``stage`` with replaced Linears, which the kit restores."""
        swap(stage, nn.Linear, MegatronLinear)
        return AutogradSession(stage, spec)
