"""d9d's forward and backward compute handlers: the registered target ``d9d``."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gradconform.adapter import Capabilities, StageSpec, Tree, needed
from gradconform.target.session import StageSession
from gradconform.trees import as_tuple

from .full_only import received

# It requires a newer torch than the kit, and more packages than these handlers import.
with needed("d9d", "pip install --no-deps d9d==0.24.0 optree==0.20.0"):
    from d9d.pipelining.infra.stage.computations import (
        BackwardComputeHandler,
        BackwardSeedLoss,
        BackwardSeedTransfer,
        ForwardComputeHandler,
    )


class _Taking(nn.Module):
    """A module that receives the inputs of a stage in one tree, and the inputs of all stages, which are empty here."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, inputs: list[Any], shared: None) -> Tree:
        del shared
        return as_tuple(self.stage(*inputs))


class D9dSession(StageSession):
    """A pair of handlers, used as d9d's ``PipelineStage`` does."""

    def __init__(self, stage: nn.Module, spec: StageSpec) -> None:
        """Create the handlers; the first stage of a pipeline sends input gradients to no other stage."""
        super().__init__(stage, spec)
        module = _Taking(stage)
        self._forward = ForwardComputeHandler(stage_index=0, module=module)
        self._backward = BackwardComputeHandler(stage_index=0, module=module, has_input_peer=not spec.is_first)
        self._lone = not isinstance(spec.example_outputs, (tuple, list, dict))

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Run the handler; the caller computes the loss."""
        self._forward.run(mb, inputs=list(received(args)), shared=None)
        outputs = self._forward.get_outputs(mb)
        outputs = outputs[0] if self._lone else outputs
        if self._spec.loss_fn is not None:
            self._forwards[mb] = (), self._spec.loss_fn(outputs, target)
        return outputs

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run the full backward."""
        self._backward.backward_full(mb, *self._seeded(mb, output_grads))
        return self._sent(mb)

    def backward_input(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run the backward of the inputs."""
        self._backward.backward_input(mb, *self._seeded(mb, output_grads))
        return self._sent(mb)

    def _seeded(self, mb: int, output_grads: Tree) -> tuple[Tree, Any]:
        inputs, outputs = self._forward.pop_inputs_outputs(mb)
        _, loss = self._forwards.pop(mb, ((), None))
        return inputs, BackwardSeedTransfer(outputs, output_grads) if loss is None else BackwardSeedLoss(loss)

    def _sent(self, mb: int) -> tuple[Tensor | None, ...]:
        if self._spec.is_first:
            return (None,) * len(self._spec.example_args)
        return tuple(self._backward.pop_for_sending(mb))

    def backward_weight(self, mb: int) -> None:
        """Run the backward of the weights."""
        self._backward.backward_weight(mb)


class D9dAdapter:
    """The adapter of d9d: it claims stages of tensors that each have a path to the outputs."""

    name = "d9d"
    drives = "d9d.pipelining.infra.stage.splitgrad"
    capabilities = Capabilities(
        first_stage_input_grads=False,
        unused_input=False,  # refused: "Every tensor in the incoming StageTransfer must have a differentiable path"
        fixed_input=False,  # as above
        integer_input=False,  # as above
        nongrad_output=False,  # refused: there is no gradient to pair such an output with
        called_without_grad=False,  # refused: it makes views of the inputs to find their nodes
        nontensor_input=False,
        parameter_input=False,  # a stage receives new tensors
    )

    def open(self, stage: nn.Module, spec: StageSpec) -> D9dSession:
        """Return a session on ``stage``."""
        return D9dSession(stage, spec)
