"""What adapters share whose implementation runs a backward in one piece."""

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
    """Has B alone."""

    def backward_input(self, mb: int, output_grads: Tree) -> NoReturn:
        """Refuse: there is no I."""
        del output_grads
        msg = f"micro-batch {mb} cannot run I: the adapter has only B"
        raise UnsupportedError(msg)

    def backward_weight(self, mb: int) -> NoReturn:
        """Refuse: there is no W."""
        msg = f"micro-batch {mb} cannot run W: the adapter has only B"
        raise UnsupportedError(msg)


def received(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments as a pipeline's receive makes them; raise :class:`UnsupportedError` for a parameter."""
    refuse_parameters(args)
    return handed_on(args)


def handed_on(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return leaves of their own on the same memory."""
    return tuple(map(leaf_of, values))


def refuse_parameters(args: tuple[Any, ...]) -> None:
    """Raise :class:`UnsupportedError` for a parameter: what is received is none, and its gradient would be lost."""
    if any(isinstance(arg, nn.Parameter) for arg in args):
        msg = "a stage receives tensors of its own, and no parameter among them"
        raise UnsupportedError(msg)


def flat(values: Tree) -> Tree:
    """Return a tuple for a lone tensor or a list; what is neither is passed on for the implementation to refuse."""
    if isinstance(values, Tensor):
        return (values,)
    return tuple(values) if isinstance(values, list) else values


class TakingTuples(nn.Module):
    """Gives and takes tuples, as the layers of an ``nn.Sequential`` do; a list of outputs becomes one."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage

    def forward(self, inputs: Tree) -> Tree:
        """Call the stage."""
        outputs = self.stage(*inputs) if isinstance(inputs, tuple) else self.stage(inputs)
        return tuple(outputs) if isinstance(outputs, list) else outputs


#: What such a module refuses: "Input and output have to be a Tensor or a tuple of tensors", of rows in a batch, and
#: the forward that it recomputes runs without gradients first.
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
