"""Faults after a backward: changed process settings, changed arguments, and the form of stored gradients."""

from __future__ import annotations

import os
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradconform.target.resolve import Target

from .alterations import Backwards, Grads, alters, backwards, stored_as, target, with_session
from .registry import fault


@fault("state.process.*", takes="watched=state")
def deterministic_algorithms_left_on() -> Target:
    """B and W turn deterministic algorithms on and do not restore the setting."""

    def turn_on(_: Any) -> None:
        torch.use_deterministic_algorithms(mode=True, warn_only=True)

    return stored_as(turn_on)


@fault("state.process.*", takes="watched=state")
def default_dtype_left_changed() -> Target:
    """B and W set the default dtype to float64 and do not restore it."""
    return stored_as(lambda _: torch.set_default_dtype(torch.float64))


@fault("state.process.*", takes="watched=state")
def threads_left_changed() -> Target:
    """B and W set another number of threads and do not restore it."""
    return stored_as(lambda _: torch.set_num_threads(torch.get_num_threads() + 1))


@fault("state.process.*", takes="watched=state")
def python_seeded() -> Target:
    """B and W seed Python's random numbers, so that their caller draws the same numbers each time."""
    return stored_as(lambda _: random.seed(0))


@fault("state.process.*", takes="watched=state")
def numpy_seeded() -> Target:
    """B and W seed NumPy's random numbers, so that their caller draws the same numbers each time."""
    return stored_as(lambda _: np.random.seed(0))  # noqa: NPY002 (what many libraries call)


@fault("state.process.*", takes="watched=state")
def warnings_left_off() -> Target:
    """B and W turn a warning off and do not restore it."""
    return stored_as(lambda _: warnings.filterwarnings("ignore", message="a backward"))


@fault("state.process.*", takes="watched=state")
def variable_left_set() -> Target:
    """B and W set an environment variable and do not remove it."""
    return stored_as(lambda _: os.environ.update(CUDA_LAUNCH_BLOCKING="1"))


@fault("state.process.*", raises=True, takes="watched=state")
def grad_mode_left_off() -> Target:
    """B and W turn the recording of operations off and do not restore it."""
    return stored_as(lambda _: torch.set_grad_enabled(False))


@fault("space.full.no-grad-1", "space.split.half-input-1", takes="mode=no-grad")
def grad_mode_left_on() -> Target:
    """B and W turn the recording of operations on and do not restore it: it shows only if it was off before."""
    return stored_as(lambda _: torch.set_grad_enabled(True))


@fault("space.full.graded-gain-1", "space.split.default-dtype-1", takes="mode=default-dtype")
def default_dtype_reset() -> Target:
    """B and W set the default dtype to float32, whatever it was before."""
    return stored_as(lambda _: torch.set_default_dtype(torch.float32))


@fault("space.full.all-fixed-8", "space.split.state-1", takes="mode=deterministic")
def deterministic_algorithms_turned_off() -> Target:
    """B and W turn deterministic algorithms off, although the caller has turned them on."""
    return stored_as(lambda _: torch.use_deterministic_algorithms(mode=False))


@fault("state.process.*", takes="watched=state")
def autocast_left_on() -> Target:
    """B and W turn autocast on and do not restore it."""
    return stored_as(lambda _: torch.set_autocast_enabled("cpu", True))  # noqa: FBT003 (torch's own)


@fault("state.process.*", takes="watched=state")
def anomaly_mode_left_on() -> Target:
    """B and W turn the anomaly mode of autograd on and do not restore it."""
    return stored_as(lambda _: torch.autograd.set_detect_anomaly(mode=True))


@fault("state.process.*", takes="watched=state")
def hooks_on_saved_tensors_left() -> Target:
    """B and W leave default hooks on saved tensors."""
    held: list[Any] = []  # hooks end with their context

    def leave(_: Any) -> None:
        held.append(torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor))
        held[-1].__enter__()

    return stored_as(leave)


@fault("state.handed.list-output-*", "state.handed.nested-output-*")
@alters(with_session)
class ListsOfOutputGradsEmptied(Backwards):
    """The lists and dicts of output gradients are emptied after use, to free their memory."""

    def run(self, backward: Callable[[int, Any], Grads], mb: int, output_grads: Any) -> Grads:
        found = backward(mb, output_grads)
        _empty(output_grads)
        return found


def _empty(tree: Any) -> None:
    if isinstance(tree, (tuple, list, dict)):
        for branch in tree.values() if isinstance(tree, dict) else tree:
            _empty(branch)
    if isinstance(tree, (list, dict)):
        tree.clear()


@fault("state.handed.two-inputs-*")
def hooks_left_on_inputs() -> Target:
    """B and I leave a hook on every input."""

    def hooked(run: Callable[..., Grads], outputs: Any, grads: Any, inputs: Sequence[Any]) -> Grads:
        found = run(outputs, grads, inputs)
        for value in inputs:
            if isinstance(value, Tensor) and value.requires_grad and not isinstance(value, nn.Parameter):
                value.register_hook(lambda grad: grad)
        return found

    return target(backwards(hooked))


@fault("*.gradients.mlp")
def accumulated_gradients_require_grad() -> Target:
    """Accumulated gradients require a gradient themselves."""

    def tracked(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if parameter.grad is not None and parameter.grad.layout == torch.strided:
                parameter.grad = parameter.grad.detach().requires_grad_()

    return stored_as(tracked)


@fault("state.stored_layout.*", shows_by="memory")
def gradients_stored_transposed() -> Target:
    """Gradients are stored with their first and last dimension swapped in memory."""

    def transposed(parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            grad = parameter.grad
            if grad is not None and grad.layout == torch.strided and grad.dim() > 1:
                parameter.grad = grad.transpose(0, -1).contiguous().transpose(0, -1)

    return stored_as(transposed)
