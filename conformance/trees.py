"""Trees: a tensor, or tuples, lists and dicts of trees. Enough for stage outputs, without torch's private pytree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Tree = Any


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(path, leaf)`` in order, e.g. ``("[0]['h']", tensor)``; what is no tuple, list or dict is a leaf.

    A gradient edge is a leaf as well: it stands for an output, though torch makes it a tuple.
    """
    if isinstance(tree, (tuple, list)) and not isinstance(tree, GradientEdge):
        for index, branch in enumerate(tree):
            yield from leaves(branch, f"{path}[{index}]")
    elif isinstance(tree, dict):
        for key, branch in tree.items():
            yield from leaves(branch, f"{path}[{key!r}]")
    else:
        yield path, tree


def flattened(tree: Tree) -> list[Any]:
    """Return the leaves of ``tree`` in order, without their paths."""
    if not isinstance(tree, (tuple, list, dict)) or isinstance(tree, GradientEdge):
        return [tree]
    return [leaf for branch in (tree.values() if isinstance(tree, dict) else tree) for leaf in flattened(branch)]


def tensors(tree: Tree) -> list[Tensor]:
    """Return the tensors of ``tree`` in order."""
    return [leaf for leaf in flattened(tree) if isinstance(leaf, Tensor)]


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return a tree of the same structure whose leaves are ``function(leaf)``."""
    if isinstance(tree, tuple) and not isinstance(tree, GradientEdge):
        return tuple(map_leaves(function, branch) for branch in tree)
    if isinstance(tree, list):
        return [map_leaves(function, branch) for branch in tree]
    if isinstance(tree, dict):
        return {key: map_leaves(function, branch) for key, branch in tree.items()}
    return function(tree)


def as_tuple(outputs: Tree) -> Tree:
    """Return ``outputs``, a lone leaf as a tuple of one: the form in which output gradients mirror outputs."""
    return outputs if isinstance(outputs, (tuple, list, dict)) else (outputs,)


def equal(one: Tensor, other: Tensor) -> bool:
    """Tell whether two strided tensors are equal; of a dtype that torch cannot compare, whether their bytes are."""
    try:
        return torch.equal(one, other)
    except NotImplementedError:  # half complex numbers, for one
        return one.dtype is other.dtype and torch.equal(
            *(two.contiguous().reshape(-1).view(torch.uint8) for two in (one, other))
        )
