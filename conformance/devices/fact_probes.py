"""Facts that a device's tensors show, tried in the probe's own process, which the device may end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gradconform.torch_releases.dispatch import DispatchMode
from gradconform.trees import tensors


def shows(device: torch.device, fact: str, *, below: bool = True) -> bool:
    """Return whether tensors on ``device`` show ``fact``, one of :data:`gradconform.devices.probe.FACTS`.

    The device may raise or end the process. The fact is read from a user's tensor, and from one ``below`` autograd;
    torch_xla ends the process at the latter.
    """
    questions: dict[str, Callable[[Tensor], bool]] = {
        "version": lambda tensor: tensor._version >= 0,  # noqa: SLF001 (torch has no other name for it)
        "offset": lambda tensor: tensor.storage_offset() >= 0,
        "address": lambda tensor: tensor.data_ptr() != 0 and tensor.untyped_storage().data_ptr() != 0,
    }
    if below and not _seen_below(device, questions[fact]):
        return False
    return questions[fact](torch.ones(3, device=device, requires_grad=True))


def operations_are_seen(device: torch.device) -> bool:
    """Return True after a backward in which every operation was observed; the device may raise or end the process."""
    return _seen_below(device, lambda _: True)


def _seen_below(device: torch.device, question: Callable[[Tensor], bool]) -> bool:
    """Return whether ``question`` holds for every tensor that a forward and its backward make."""
    below = _Below(question, device.type)
    leaf = torch.ones(3, device=device, requires_grad=True)
    with below:
        (leaf * leaf).sum().backward()
    return below.shown


class _Below(DispatchMode):
    """Applies a predicate to every tensor that an operation makes on a device type."""

    def __init__(self, question: Callable[[Tensor], bool], device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self._question, self._type = question, device_type
        self.shown = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation, then apply the predicate."""
        del types
        found = func(*args, **(kwargs or {}))
        self.shown &= all(self._question(one) for one in tensors(found) if one.device.type == self._type)
        return found
