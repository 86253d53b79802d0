"""A node's saved tensors under activation checkpointing, detected without recomputing them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from .names import Name

#: The module whose objects compute a saved tensor again.
_CHECKPOINT = "torch.utils.checkpoint"
_NEEDED = "shows what activation checkpointing has saved"
#: The packed object in its packed form. Not in 2.9 and before.
PACKED = Name("torch._C._autograd:SavedTensor", ("data",), _NEEDED)
#: The module from which checkpointing gets a number just before it recomputes outside a backward.
UUID_MODULE = Name(_CHECKPOINT, ("uuid",), _NEEDED)


def recomputing(nodes: Iterable[Node]) -> set[Node]:
    """Return the ``nodes`` with saved tensors that checkpointing recomputes when they are unpacked."""
    if not PACKED.there(_kept()):
        with _stopped_before_it_computes():
            return {node for node in nodes if any(_is_about_to_compute(node, name) for name in _saved_by(type(node)))}
    (packed,) = PACKED.spellings
    found = set()
    for node in nodes:
        kind: Any = type(node)
        for name in _raw_in(BackwardCFunction if issubclass(kind, BackwardCFunction) else kind):  # inlined: see _raw_by
            saved = getattr(node, name)
            for one in saved if isinstance(saved, tuple) else (saved,):
                if type(getattr(one, packed)).__module__ == _CHECKPOINT:
                    found.add(node)
    return found


def products_recomputing(nodes: Iterable[Node]) -> set[Node]:
    """Return the same for products, for which one saved tensor decides: checkpointing packs all or none of them.

    A product saves a factor only if the other one needs a gradient.
    """
    if not PACKED.there(_kept()):
        return recomputing(nodes)
    (packed,) = PACKED.spellings
    found = set()
    for node in nodes:
        for name in _raw_in(type(node)):
            one = getattr(getattr(node, name), packed)
            if one is not None:
                if type(one) is not Tensor and type(one).__module__ == _CHECKPOINT:
                    found.add(node)
                break
    return found


def saves_tensors(kind: type) -> bool:
    """Return whether nodes of a type may have saved tensors."""
    return bool(_raw_by(kind))


@lru_cache(maxsize=1)
def _kept() -> Any:
    """Return torch's class of saved tensors, looked up once because every node of a graph is tested."""
    return PACKED.home()


def _each(saved: Any) -> tuple[Any, ...]:
    return saved if isinstance(saved, tuple) else (saved,)


def _raw_by(kind: type) -> tuple[str, ...]:
    # Not kept for a custom Function: its class may hold its author's tensors.
    known: Any = BackwardCFunction if issubclass(kind, BackwardCFunction) else kind
    return _raw_in(known)


@lru_cache(maxsize=512)
def _raw_in(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def _saved_by(kind: type) -> tuple[str, ...]:
    return tuple(name.removeprefix("_raw") for name in _raw_by(kind))


class _AboutToComputeError(Exception):
    """Checkpointing had to produce a tensor that it has not kept."""


class _RaisingModule:
    """Replaces the module ``uuid`` in ``torch.utils.checkpoint``."""

    def __getattr__(self, _: str) -> Any:
        raise _AboutToComputeError


@contextmanager
def _stopped_before_it_computes() -> Iterator[None]:
    module, name = UUID_MODULE.home(), UUID_MODULE.spelled(UUID_MODULE.home())
    kept = getattr(module, name)
    setattr(module, name, _RaisingModule())
    try:
        yield
    finally:
        setattr(module, name, kept)


def _is_about_to_compute(node: Node, name: str) -> bool:
    found: Any = ()
    try:
        with suppress(RuntimeError):  # the buffers are freed, or a saved tensor has changed since: backward reports it
            found = getattr(node, name if hasattr(type(node), name) else name.removeprefix("_"))  # public in a Function
    except _AboutToComputeError:
        return True
    for one in _each(found):
        _let_go(one)
    return False


def _let_go(unpacked: Any) -> None:
    """Detach a tensor that represents a leaf from the leaf's accumulator before it is freed.

    If hooks have packed a leaf, unpacking returns another tensor with the leaf's own accumulator. On these releases,
    freeing it removes the leaf's hooks. A change of dtype makes it forget the accumulator.
    """
    if not isinstance(unpacked, Tensor) or not (unpacked.is_leaf and unpacked.requires_grad):
        return
    with torch.enable_grad():
        below = unpacked.view_as(unpacked).grad_fn
    leaves = [getattr(node, "variable", None) for node, _ in below.next_functions] if below is not None else []
    if any(leaf is not None and leaf is not unpacked for leaf in leaves):
        other = torch.float64 if unpacked.dtype != torch.float64 else torch.float32
        unpacked.data = torch.empty(0, dtype=other, device=unpacked.device)
