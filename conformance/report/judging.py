"""How a check is judged: which judges its code calls, and whether the numeric rule decides."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gradconform.check import Check

#: What compares values with plain autograd by the numeric rule.
_COMPARES = "gradconform.tolerance"


def judges(check: Check) -> list[Callable[..., object]]:
    """Return the functions of gradconform.judge that the check's code calls, in the order in which it names them."""
    called = [check.judge] if _is_judge(check.judge) else [*_called(check.judge, depth=2, within=_is_judge)]
    return [judge for judge in dict.fromkeys(called) if _is_judge(judge)]


def compares_values(check: Check) -> bool:
    """Tell whether the numeric rule may decide the check."""
    return any(getattr(found, "__module__", "") == _COMPARES for found in _called(check.judge, depth=6))


def first_line(function: Callable[..., object]) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def _is_judge(function: object) -> bool:
    module = str(getattr(function, "__module__", ""))
    return isinstance(function, FunctionType) and module.startswith("gradconform.judge.")


def _called(
    function: object, depth: int, within: Callable[[object], bool] = lambda _: False
) -> Iterator[Callable[..., object]]:
    """Yield the functions that the code of ``function`` names, and those that they name, down to ``within``."""
    if depth == 0 or not isinstance(function, FunctionType):
        return
    for found in _named(function):
        if callable(found) and str(getattr(found, "__module__", "")).startswith("gradconform"):
            yield found
            if not within(found):
                yield from _called(found, depth - 1, within)


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield the globals that the code of ``function`` names, and what it names in those that are modules."""
    names = list(_names(function.__code__))
    for name in names:
        found = function.__globals__.get(name)
        if isinstance(found, ModuleType):
            yield from (vars(found)[other] for other in names if other in vars(found))
        else:
            yield found


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
