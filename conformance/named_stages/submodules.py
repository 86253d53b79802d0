"""Pieces of a stage: an inner module as a stage, with arguments of the shapes that it receives in the whole."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn

from gradconform.fixtures.inputs import draw_arguments, place_arguments
from gradconform.fixtures.stages.case import StageCase
from gradconform.user_input.values import nearest

from .error import StageError
from .example import recipes_of
from .measured_traits import traits_of

_CPU = torch.device("cpu")

#: What parts the name of a stage from that of a module inside it, as in ``model.py:build#layers.0``.
MARK = "#"


def submodule_stage(case: StageCase, path: str) -> StageCase:
    """Return the module ``path`` of a stage as a stage.

    Its parameters have the values of the whole stage. Raises :class:`StageError` if the forward does not call it, or if
    it cannot be a stage alone.
    """
    called = _calls(case)
    description = f"stage {case.special + MARK + path!r}"
    if path not in called:
        near = nearest(path, called)[:200]
        msg = f"{description}: the forward of {case.special} calls no module {path!r}; nearest: {near}"
        raise StageError(msg)
    args, kwargs = called[path]
    build = case.build

    def inner() -> nn.Module:
        return build().get_submodule(path)

    module = inner()
    example = args if not kwargs else {**_by_name(module, args, description), **kwargs}
    word = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")
    piece = StageCase(
        f"{case.name}-{word}",
        case.special + MARK + path,
        inner,
        recipes_of(example, module, description),
        own_values=True,
    )
    return replace(piece, traits=traits_of(piece, description))


def calls(case: StageCase, path: str) -> bool:
    """Return whether the forward of a stage calls the module ``path``."""
    return path in _calls(case)


def submodules_of(case: StageCase, path: str = "") -> Iterator[tuple[str, StageCase]]:
    """Yield the stages directly below the module ``path`` of a stage (the whole if empty), by their names.

    Modules that cannot be stages alone are skipped.
    """
    inside = [name for name in _calls(case) if name.startswith(f"{path}." if path else "")]
    for name in inside:
        if not any(name.startswith(f"{other}.") for other in inside):
            try:
                yield name, submodule_stage(case, name)
            except StageError:
                continue


@lru_cache(maxsize=1)  # the pieces of one stage are tried in turn
def _calls(case: StageCase) -> dict[str, tuple[tuple[Any, ...], dict[str, Any]]]:
    """Return the arguments of each inner module's first call in one forward."""
    module = case.make(dtype=torch.float32, device=_CPU, seed=0)
    args = place_arguments(case.inputs, draw_arguments(case.inputs, seed=0, dtype=torch.float32), module, _CPU)
    names = {id(inner): name for name, inner in module.named_modules() if name}
    found: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def called(inner: nn.Module, given: tuple[Any, ...], by_name: dict[str, Any]) -> None:
        if id(inner) in names:
            found.setdefault(names[id(inner)], (given, by_name))

    handles = [inner.register_forward_pre_hook(called, with_kwargs=True) for inner in module.modules()]
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        module(*args)
    for handle in handles:
        handle.remove()
    return found


def _by_name(module: nn.Module, args: tuple[Any, ...], description: str) -> dict[str, Any]:
    """Return positional arguments by the names in the module's forward."""
    names = list(inspect.signature(module.forward).parameters)
    if len(names) < len(args):
        msg = f"{description}: its forward takes both named and unnamed arguments; wrap it in a module with named ones"
        raise StageError(msg)
    return dict(zip(names, args, strict=False))
