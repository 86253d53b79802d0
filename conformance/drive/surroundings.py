"""What an action finds around it and must leave: settings of the process, and what it was handed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from gradconform.torch_releases.settings import hooks_on_saved_tensors, without_hooks_on_saved_tensors
from gradconform.trees import Tree, leaves


def settings(device: torch.device) -> dict[str, Any]:
    """Return what the process is set to, by name."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "the default dtype": str(torch.get_default_dtype()),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "autocast": _autocast(device.type),
        "anomaly mode": torch.is_anomaly_enabled(),
        "the number of threads": torch.get_num_threads(),
        "default hooks on saved tensors": hooks_on_saved_tensors(),
    }


def _autocast(device_type: str) -> bool | None:
    try:
        return torch.is_autocast_enabled(device_type)
    except RuntimeError:  # lazy, for one, has no autocast
        return None


@contextlib.contextmanager
def put_back(device: torch.device) -> Iterator[None]:
    """Set the process as it was before, whatever was run in it; its grad mode is left to whoever set it."""
    before, dtype = settings(device), torch.get_default_dtype()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        after = settings(device)
        if after != before:
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(mode=before["deterministic algorithms"], warn_only=warns)
            if before["autocast"] is not None:  # the device has it
                torch.set_autocast_enabled(device.type, before["autocast"])
            torch.autograd.set_detect_anomaly(before["anomaly mode"])
            torch.set_num_threads(before["the number of threads"])
            if not before["default hooks on saved tensors"]:
                without_hooks_on_saved_tensors()


class Handed:
    """The lists and dicts of one tree that an action is handed, and what stood in them."""

    def __init__(self, tree: Tree) -> None:
        """Look at the tree as it is."""
        self._tree, self._entries = tree, list(leaves(tree))

    @property
    def stands(self) -> bool:
        """Whether every entry is the object that it was, in the same place."""
        now = list(leaves(self._tree))
        return len(now) == len(self._entries) and all(
            path == other and leaf is entry for (path, leaf), (other, entry) in zip(now, self._entries, strict=True)
        )


def left_on(args: Mapping[int, Iterable[Any]]) -> dict[str, bool]:
    """Tell by name of every argument whether hooks are on it."""
    return {
        f"hooks on argument {slot} of micro-batch {mb}": bool(arg._backward_hooks)  # noqa: SLF001 (torch has no other way to ask)
        for mb, own in args.items()
        for slot, arg in enumerate(own)
        if isinstance(arg, Tensor)
    }
