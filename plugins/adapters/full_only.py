"""Shared code of adapters whose implementation has only a full backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor, nn

from gradconform.adapter import StageSpec, Tree, UnsupportedError
from gradconform.reference.autograd import AutogradSession, leaf_of
from gradconform.target.session import StageSession

#: What such an implementation does not claim.
FULL_ONLY: dict[str, Any] = {"split": False, "mixed": False, "weight_before_input": False}


class FullOnlySession(StageSession):
    """A session with only B."""

    def backward_input(self, mb: int, output_grads: Tree) -> NoReturn:
        """Raise :class:`UnsupportedError`: there is no I."""
        del output_grads
        msg = f"micro-batch {mb} cannot run I: the adapter has only B"
        raise UnsupportedError(msg)

    def backward_weight(self, mb: int) -> NoReturn:
        """Raise :class:`UnsupportedError`: there is no W."""
        msg = f"micro-batch {mb} cannot run W: the adapter has only B"
        raise UnsupportedError(msg)


def received(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments as a pipeline receives them; raise :class:`UnsupportedError` for a parameter."""
    refuse_parameters(args)
    return handed_on(args)


def handed_on(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return new leaves on the same memory."""
    return tuple(map(leaf_of, values))


def refuse_parameters(args: tuple[Any, ...]) -> None:
    """Raise :class:`UnsupportedError` for a parameter: its gradient would be lost, because inputs are received."""
    if any(isinstance(arg, nn.Parameter) for arg in args):
        msg = "a stage receives new tensors, which are not parameters"
        raise UnsupportedError(msg)


def flat(values: Tree) -> Tree:
    """Return a tuple for a single tensor or a list; the implementation may refuse other values."""
    if isinstance(values, Tensor):
        return (values,)
    return tuple(values) if isinstance(values, list) else values


class TakingTuples(nn.Module):
    """A module that accepts and returns tuples, like the layers of an ``nn.Sequential``."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, inputs: Tree) -> Tree:
        """Call the stage."""
        outputs = self.stage(*inputs) if isinstance(inputs, tuple) else self.stage(inputs)
        return tuple(outputs) if isinstance(outputs, list) else outputs


#: Refused by such a module: "Input and output have to be a Tensor or a tuple of tensors", with rows in a batch. The
#: forward that it recomputes first runs without gradients.
PIPED: dict[str, Any] = {
    **FULL_ONLY,
    "nested_output": False,
    "nontensor_input": False,
    "parameter_input": False,
    "scalar_output": False,
    "grad_mode": False,
    "nongrad_output": False,  # refused: the recomputed backward starts at every output
    "changed_in_flight": False,  # the forward that is run again has the parameters as they are then
}


class PipedSession(FullOnlySession):
    """A session with the stage as a pipe's only partition, which runs each call as one recomputed chunk."""

    def __init__(self, stage: nn.Module, spec: StageSpec, pipe: Callable[..., nn.Module]) -> None:
        """Create the pipe; it renames parameters, but reports use the stage's names."""
        super().__init__(stage, spec)
        device = next((arg.device for arg in spec.example_args if isinstance(arg, Tensor)), "cpu")
        layers = nn.Sequential(TakingTuples(stage))
        piped = pipe(layers, balance=[1], devices=[device], chunks=1, checkpoint="always")
        self._user = AutogradSession(_Spread(piped), spec)

    def forward(self, mb: int, args: tuple[Any, ...], target: Tree = None) -> Tree:
        """Call the pipe; raise :class:`UnsupportedError` for an argument without rows to divide."""
        refuse_parameters(args)
        if any(isinstance(arg, Tensor) and not arg.dim() for arg in args):
            msg = "a pipe divides every argument along its first dimension; a tensor without dimensions has none"
            raise UnsupportedError(msg)
        return self._user.forward(mb, args, target)

    def backward(self, mb: int, output_grads: Tree) -> tuple[Tensor | None, ...]:
        """Run autograd on the pipe's outputs, as its user does."""
        return self._user.backward(mb, output_grads)

    def close(self) -> None:
        """Free every graph."""
        self._user.close()


class _Spread(nn.Module):
    """A module that calls a pipe of one argument with several."""

    def __init__(self, pipe: nn.Module) -> None:
        super().__init__()
        self.pipe = pipe

    def forward(self, *args: Any) -> Tree:
        return self.pipe(args[0] if len(args) == 1 else args)
