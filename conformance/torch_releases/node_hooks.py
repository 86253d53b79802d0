"""Detection of other hooks at a graph node. Nodes do not show their hooks, so the kit adds one among them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from .names import Name

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

#: The hooks at the same place as the one that a handle removes.
OTHER_HOOKS = Name(
    "torch.utils.hooks:RemovableHandle", ("hooks_dict_ref",), "shows other hooks of a node", of_instances=True
)
#: Once it is imported, compiled autograd runs its own nodes in place of the graph's nodes.
_COMPILED_AUTOGRAD = "torch._dynamo.compiled_autograd"


class Watched:
    """A context for a backward: takes the gradient on which each node of one output runs.

    A hook on a node is called last, after the hooks of the node's output and those before the node.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Store the nodes."""
        self._nodes = nodes
        self._handles: list[Any] = []
        self._streams: list[Any] = [None] * len(nodes)
        #: The gradient on which each node ran; None if it did not run, or on nothing.
        self.ran_on: list[Tensor | None] = [None] * len(nodes)
        #: After the backward: whether a node had no other hook behind it, and ran on this thread's stream.
        self.alone: list[bool] = []

    def __enter__(self) -> Self:
        """Add a hook to each node."""
        self._handles = [node.register_hook(self._hook(place)) for place, node in enumerate(self._nodes)]
        return self

    def _hook(self, place: int) -> Callable[[Any, Any], None]:
        ran_on, streams = self.ran_on, self._streams

        def hook(_: Any, came: tuple[Tensor | None, ...]) -> None:
            ran_on[place] = grad = came[0]
            if grad is not None and not grad.is_cpu:
                streams[place] = current_stream(grad)

        return hook

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the hooks, and let this thread's streams wait for the gradients of others."""
        (attribute,) = OTHER_HOOKS.spellings
        for handle in self._handles:
            find = getattr(handle, attribute, None)
            hooks = None if find is None else find()
            if hooks is not None and len(hooks) == 1:
                hooks.clear()
                self.alone.append(True)
            else:
                handle.remove()
                self.alone.append(False)
        for place, stream in enumerate(self._streams):
            if stream is not None and self._waited(self.ran_on[place], stream):
                self.alone[place] = False

    def _waited(self, grad: Tensor | None, stream: Any) -> bool:
        """Return whether a gradient is another stream's; this thread's then waits for it."""
        current = None if grad is None else current_stream(grad)
        if current is None or stream == current:
            return False
        current.wait_stream(stream)
        return True


@contextmanager
def running_on(nodes: Iterable[tuple[Node, Tensor]]) -> Iterator[None]:
    """Let each node of one output run on the gradient paired with it, whatever other hooks return."""
    handles = [node.register_prehook(partial(_replaced, (grad,))) for node, grad in nodes]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _replaced(grads: tuple[Tensor], _: Any) -> tuple[Tensor]:
    return grads


def current_stream(tensor: Tensor) -> Any:
    """Return this thread's stream for the device of ``tensor``; None if such devices have none."""
    find = getattr(getattr(torch, tensor.device.type, None), "current_stream", None)
    return None if find is None else find(tensor.device)


def is_compiled_autograd_on() -> bool:
    """Return whether backwards run compiled nodes in place of the graph's nodes."""
    module: Any = sys.modules.get(_COMPILED_AUTOGRAD)
    return bool(module is not None and getattr(module, "compiled_autograd_enabled", True))
