"""Detection of other hooks at a graph node. Nodes do not show their hooks, so the kit adds one among them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from .names import Name

if TYPE_CHECKING:
    from typing_extensions import Self  # typing has it from Python 3.11 on

#: The hooks at the same place as the one that a handle removes.
BESIDE = Name(
    "torch.utils.hooks:RemovableHandle", ("hooks_dict_ref",), "shows other hooks of a node", of_instances=True
)
#: Once it is imported, compiled autograd runs its own nodes in place of the graph's nodes.
_COMPILED_AUTOGRAD = "torch._dynamo.compiled_autograd"


class Watched:
    """A context for a backward: reports which nodes of one output ran on their input unchanged, without other hooks.

    A hook on a node is called last, with the gradient on which the node ran. Hooks of the node's output and hooks
    before the node are visible if they changed that gradient; other hooks behind the node are counted.
    """

    def __init__(self, nodes: Sequence[Node]) -> None:
        """Store the nodes."""
        self._nodes = nodes
        self._ran_on: list[Tensor | None] = [None] * len(nodes)
        self._streams: list[Any] = [None] * len(nodes)
        self._others: list[Callable[[], Any] | None] = []
        self._handles: list[Any] = []

    def __enter__(self) -> Self:
        """Add a hook to each node."""
        (beside,) = BESIDE.spellings
        for place, node in enumerate(self._nodes):
            handle = node.register_hook(self._hook(place))
            self._handles.append(handle)
            self._others.append(getattr(handle, beside, None))
        return self

    def _hook(self, place: int) -> Callable[[Any, Any], None]:
        ran_on, streams = self._ran_on, self._streams

        def hook(_: Any, came: tuple[Tensor | None, ...]) -> None:
            ran_on[place] = grad = came[0]
            if grad is not None and not grad.is_cpu:
                streams[place] = current_stream(grad)

        return hook

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()

    def untouched(self, came: Iterable[Tensor | None]) -> list[bool]:
        """Return for each node whether it ran on the gradient in ``came`` and had no other hook.

        It must have run on the stream that this thread uses for the device.
        """
        return [
            grad is not None
            and ran_on is grad
            and others is not None
            and not others()
            and (grad.is_cpu or bool(stream == current_stream(grad)))
            for grad, ran_on, others, stream in zip(came, self._ran_on, self._others, self._streams, strict=True)
        ]


def current_stream(tensor: Tensor) -> Any:
    """Return this thread's stream for the device of ``tensor``; None if such devices have none."""
    find = getattr(getattr(torch, tensor.device.type, None), "current_stream", None)
    return None if find is None else find(tensor.device)


def is_compiled_autograd_on() -> bool:
    """Return whether backwards run compiled nodes in place of the graph's nodes."""
    module: Any = sys.modules.get(_COMPILED_AUTOGRAD)
    return bool(module is not None and getattr(module, "compiled_autograd_enabled", True))
