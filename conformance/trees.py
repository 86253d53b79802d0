"""Trees: a tensor, or tuples, lists and dicts of trees. They replace torch's private pytree for stage outputs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Tree = Any


#: The types of a tree's inner nodes. A gradient edge has one of them, and is a leaf.
_BRANCHED = (tuple, list, dict)


class OpaqueOutputError(TypeError):
    """An output is an object that the kit does not take apart."""


def leaves(tree: Tree, path: str = "") -> list[tuple[str, Any]]:
    """Return ``(path, leaf)`` in order, e.g. ``("[0]['h']", tensor)``; anything but a tuple, list or dict is a leaf.

    A gradient edge is also a leaf: it represents an output, though torch makes it a tuple.
    """
    if not isinstance(tree, _BRANCHED) or isinstance(tree, GradientEdge):
        return [(path, tree)]
    found: list[tuple[str, Any]] = []
    for key, branch in tree.items() if isinstance(tree, dict) else enumerate(tree):
        where = f"{path}[{key!r}]"
        found += leaves(branch, where) if isinstance(branch, _BRANCHED) else [(where, branch)]
    return found


def flattened(tree: Tree) -> list[Any]:
    """Return the leaves of ``tree`` in order, without their paths."""
    if not isinstance(tree, _BRANCHED) or isinstance(tree, GradientEdge):
        return [tree]
    found: list[Any] = []
    for branch in tree.values() if isinstance(tree, dict) else tree:
        found += flattened(branch) if isinstance(branch, _BRANCHED) else [branch]
    return found


def tensors(tree: Tree) -> list[Tensor]:
    """Return the tensors of ``tree`` in order."""
    return [leaf for leaf in flattened(tree) if isinstance(leaf, Tensor)]


def map_leaves(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """Return a tree of the same structure whose leaves are ``function(leaf)``.

    Named tuples and subclasses of dict, such as ``ModelOutput`` of transformers, keep their type.
    """
    if isinstance(tree, (tuple, list)) and not isinstance(tree, GradientEdge):
        mapped = [map_leaves(function, b) if isinstance(b, _BRANCHED) else function(b) for b in tree]
        if type(tree) is tuple:  # common, and quick
            return tuple(mapped)
        return mapped if isinstance(tree, list) else _tuple_like(tree, mapped)
    if isinstance(tree, dict):
        return _dict_like(tree, {key: map_leaves(function, branch) for key, branch in tree.items()})
    return function(tree)


def _tuple_like(tree: tuple[Any, ...], branches: list[Any]) -> tuple[Any, ...]:
    """Return a named tuple, or a result such as ``torch.max`` returns, of the type of ``tree``; else a plain tuple."""
    if hasattr(tree, "_fields") or hasattr(tree, "n_sequence_fields"):
        make: Callable[[list[Any]], tuple[Any, ...]] = getattr(type(tree), "_make", type(tree))
        return make(branches)
    return tuple(branches)


def _dict_like(tree: dict[Any, Any], branches: dict[Any, Any]) -> dict[Any, Any]:
    """Return a dict of the type of ``tree``; the constructor of a ``ModelOutput`` would drop a None."""
    if type(tree) is dict:
        return branches
    made = copy.copy(tree)
    for key, branch in branches.items():
        made[key] = branch
    return made


def in_key_order(tree: Tree, example: Tree) -> Tree:
    """Return ``tree`` with the keys of its dicts in the order of ``example``'s, if both have the same keys.

    Use it to compare two trees leaf by leaf: the order of a dict's keys does not count.
    """
    if isinstance(tree, dict):
        if not isinstance(example, dict) or tree.keys() != example.keys():
            return tree
        return {key: in_key_order(tree[key], example[key]) for key in example}
    if isinstance(tree, (tuple, list)) and isinstance(example, (tuple, list)) and len(tree) == len(example):
        return [in_key_order(branch, other) for branch, other in zip(tree, example, strict=True)]
    return tree


def refuse_opaque(outputs: Tree) -> None:
    """Raise :class:`OpaqueOutputError` for a dataclass, or a mapping that is not a dict, among the outputs.

    Tensors in such an object would get no gradient, and nothing would report it.
    """
    for path, leaf in leaves(outputs):
        if isinstance(leaf, (Tensor, type)) or not (is_dataclass(leaf) or isinstance(leaf, Mapping)):
            continue
        kind = "dataclass" if is_dataclass(leaf) else "mapping other than a dict"
        msg = (
            f"{f'output {path}' if path else 'the output'} is a {type(leaf).__name__}, a {kind}; expected tensors in "
            "tuples, named tuples, lists or dicts, of which ModelOutput of transformers is one"
        )
        raise OpaqueOutputError(msg)


def as_tuple(outputs: Tree) -> Tree:
    """Return ``outputs``, a single leaf as a tuple of one: the form in which output gradients mirror outputs."""
    return outputs if isinstance(outputs, _BRANCHED) else (outputs,)


def equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two strided tensors are equal; if torch cannot compare their dtype, whether their bytes are."""
    try:
        return torch.equal(one, other)
    except NotImplementedError:  # half-precision complex numbers, for example
        return one.dtype is other.dtype and torch.equal(
            *(two.contiguous().reshape(-1).view(torch.uint8) for two in (one, other))
        )
