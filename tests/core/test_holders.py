"""What holds an object that should have been freed is named, wherever it is kept."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gradconform.drive.holders import holder_of, unfrozen

#: What a module keeps for the whole process.
KEPT: dict[str, Any] = {}


class Registry:
    """A class with an attribute of its own, and objects with slots."""

    __slots__ = ("held",)
    modules: list[nn.Module] = []  # noqa: RUF012 (it is what is named)


def in_slot(module: nn.Module) -> Any:
    registry = Registry()
    registry.held = module
    return registry


def in_closure(module: nn.Module) -> Callable[[], nn.Module]:
    return lambda: module


def in_generator(module: nn.Module) -> Iterator[nn.Module]:
    def once() -> Iterator[nn.Module]:
        held = module
        yield held
        yield held

    running = once()
    next(running)
    return running


def in_cache(module: nn.Module) -> Any:
    cached = functools.lru_cache(lambda one: one)
    cached(module)
    return cached


def on_thread(module: nn.Module) -> Any:
    local = threading.local()
    local.held = module
    return local


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (in_slot, "attribute 'held' of Registry"),
        (in_closure, "a variable or default of in_closure.<locals>.<lambda>"),
        (in_generator, "a variable or default of in_generator.<locals>.once"),
        (in_cache, f"KEPT of {__name__}"),
        (on_thread, f"KEPT of {__name__}"),
        (lambda module: deque([module]), f"KEPT of {__name__}"),
        (lambda module: functools.partial(print, module), f"KEPT of {__name__}"),
        (lambda module: module.forward, f"KEPT of {__name__}"),
        (lambda module: [[[[[[module]]]]]], f"KEPT of {__name__}"),
        (lambda module: SimpleNamespace(held=[module]), "attribute 'held' of SimpleNamespace"),
    ],
    ids=["slot", "closure", "generator", "cache", "thread", "deque", "partial", "method", "lists", "object"],
)
def test_what_keeps_a_module_is_named_for_it_and_for_its_parameters(
    keep: Callable[[nn.Module], Any], expected: str
) -> None:
    module = nn.Linear(2, 2)
    KEPT["one"] = keep(module)
    with unfrozen():
        found = holder_of(module), holder_of(module.weight)
    KEPT.clear()
    assert found == (expected, expected)


def test_an_attribute_of_a_class_is_named_by_the_class() -> None:
    module = nn.Linear(2, 2)
    Registry.modules.append(module)
    with unfrozen():
        found = holder_of(module)
    Registry.modules.clear()
    assert found == "attribute 'modules' of class Registry"


def test_nothing_is_named_if_only_an_autograd_graph_holds_a_tensor() -> None:
    def used() -> Tensor:
        return nn.Linear(2, 2)(torch.ones(1, 2))

    output = used()
    node: Any = output.grad_fn
    weight = node.next_functions[2][0].next_functions[0][0].variable
    assert not holder_of(weight)
