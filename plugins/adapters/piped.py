"""What the adapters of GPipe and of its offspring share: a module whose backward is autograd's, with recomputation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from gradconform.adapter import StageSpec, Tree
from gradconform.plugins.adapters.full_only import FULL_ONLY, FullOnlySession, TakingTuples, refuse_parameters
from gradconform.reference.autograd import AutogradSession

#: What such a module refuses: "Input and output have to be a Tensor or a tuple of tensors", of rows in a batch, and
#: the forward that it recomputes runs without gradients first.
CLAIMS: dict[str, Any] = {
    **FULL_ONLY,
    "nested_output": False,
    "nontensor_input": False,
    "parameter_input": False,
    "scalar_output": False,
    "grad_mode": False,
    "nongrad_output": False,  # refused: the recomputed backward starts at every output
}


class PipedSession(FullOnlySession):
    """Holds the whole stage as the one partition of a pipe, which runs every call as one chunk and recomputes it."""

    def __init__(self, stage: nn.Module, spec: StageSpec, pipe: Callable[..., nn.Module]) -> None:
        """Make the pipe, which renames parameters: the stage's own names are what is reported."""
        super().__init__(stage, spec)
        device = next((arg.device for arg in spec.example_args if isinstance(arg, Tensor)), "cpu")
        layers = nn.Sequential(TakingTuples(stage))
        piped = pipe(layers, balance=[1], devices=[device], chunks=1, checkpoint="always")
        self._user = AutogradSession(_Spread(piped), spec)

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Call the pipe."""
        refuse_parameters(args)
        return self._user.forward(mb, args, target)

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Call autograd on what the pipe gave, as its user does."""
        return self._user.backward(mb, output_grads)

    def close(self) -> None:
        """Let go of every graph."""
        self._user.close()


class _Spread(nn.Module):
    """Calls a pipe, which takes one argument, with several."""

    def __init__(self, pipe: nn.Module) -> None:
        super().__init__()
        self.pipe = pipe

    def forward(self, *args: Any) -> Tree:
        return self.pipe(args[0] if len(args) == 1 else args)
