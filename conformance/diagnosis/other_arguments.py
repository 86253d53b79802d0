"""Finds an operation of the backward that was not given an argument, or the conjugate of a factor."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from torch import Tensor

from gradconform.torch_releases.dispatch import MODE, DispatchMode

from .cause import Cause, Mistake
from .rerun import Grads, Rerun

#: Arguments of operations that a layer of one's own may leave out, each with the value that it then has. None of them
#: decides which memory a kernel reads: torch's kernels trust those, such as an ignore_index outside the classes.
_LEFT_OUT: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "padding_idx": lambda _: -1,
        "scale_grad_by_freq": operator.not_,
        "align_corners": operator.not_,
        "count_include_pad": operator.not_,
        "approximate": lambda given: "none" if given == "tanh" else "tanh",
    }
)


def with_other_arguments(again: Rerun) -> Iterator[tuple[Cause, Grads]]:
    """Yield the results if one operation of the backward takes another value for an argument."""
    if not MODE.there():
        return
    with _Arguments() as seen:
        again.grads(again.given)
    for at, cause in seen.found.items():
        grads = None
        with suppress(RuntimeError), _Arguments(at):  # not every operation takes the other value
            grads = again.grads(again.given)
        if grads is not None:
            yield cause, grads


class _Arguments(DispatchMode):
    """Finds the arguments that may be left out, by the number of the call and their name; leaves out one of them."""

    def __init__(self, changed: tuple[int, str] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # torch has no types here
        self.found: dict[tuple[int, str], Cause] = {}
        self._changed = changed
        self._calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        declared = [one.name for one in func._schema.arguments]  # noqa: SLF001 (torch has no other name for it)
        given = {**dict(zip(declared, args, strict=False)), **(kwargs or {})}
        for name, value in given.items():
            other, cause = _left_out(func.overloadpacket.__name__, name, value)
            if cause is not None:
                self.found[self._calls, name] = cause
                if self._changed == (self._calls, name):
                    given[name] = other
        self._calls += 1
        by_place = [given.pop(name) for name in declared[: len(args)]]
        return func(*by_place, **given)


def _left_out(operation: str, name: str, value: Any) -> tuple[Any, Cause | None]:
    """Return the value of an argument that is left out, and that as a cause; None if nothing changes."""
    if isinstance(value, Tensor):
        conjugated = value.is_conj()
        return (value.conj(), Cause(Mistake.FACTOR_NOT_CONJUGATED, names=(operation,))) if conjugated else (value, None)
    other = _LEFT_OUT[name](value) if name in _LEFT_OUT else value
    if other == value:
        return value, None
    return other, Cause(Mistake.ARGUMENT_TAKEN_AS, names=(operation, f"{name}={other}", f"{value}"))
