"""Non-tensor arguments of the three functions: lists that the caller uses again, and weights in other forms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from gradconform.text.counts import count


class ListChangedError(Exception):
    """A function has changed a list that belongs to its caller."""


class KeptLists:
    """The lists that a caller passes and keeps: one of each sort, filled for each call and emptied after it."""

    def __init__(self) -> None:
        self._lists: dict[str, list[Any]] = {}
        self._entries: dict[str, tuple[Any, ...]] = {}

    def of(self, names: Sequence[str], given: Sequence[Any]) -> list[Any]:
        """Return the arguments of a call, with kept lists instead of all named tuples, lists and iterators."""
        return [self._kept(name, value) for name, value in zip(names, given, strict=True)]

    def _kept(self, name: str, value: Any) -> Any:
        if not name or (type(value) not in {tuple, list} and not isinstance(value, Iterator)):
            return value
        held = self._lists.setdefault(name, [])
        held[:] = value
        self._entries[name] = tuple(held)
        return held

    def check(self, function: str) -> None:
        """Raise :class:`ListChangedError` if a list differs from the last call's."""
        for name, entries in self._entries.items():
            held = self._lists[name]
            if len(held) != len(entries):
                lengths = f"expected {count(len(entries), 'entry')}, got {len(held)}"
                msg = f"{function} changed its caller's list of {name}: {lengths}"
                raise ListChangedError(msg)
            for place, (now, before) in enumerate(zip(held, entries, strict=True)):
                if now is not before:
                    msg = (
                        f"{function} changed its caller's list of {name}: entry {place} was replaced by another object"
                    )
                    raise ListChangedError(msg)
        self._entries.clear()
        for held in self._lists.values():  # a function that reads one later finds nothing of its call there
            held.clear()


def weights_for(letter: str, which: str, weights: Iterator[nn.Parameter]) -> Iterator[nn.Parameter]:
    """Return the weights that I or W is passed, for a word of :data:`gradconform.trial.trial.WEIGHTS`."""
    if which == "reversed" and letter == "W":
        return reversed(list(weights))
    if which == "twice":
        several = list(weights)
        return iter([*several, *several[:1]])
    return weights


def calls_of_weight(
    which: str, parameters: Sequence[nn.Parameter], context: Any
) -> Iterator[tuple[Iterator[nn.Parameter], Any]]:
    """Yield the weights and the context of each call of W, for a word of ``WEIGHTS``."""
    for weights, part in _parts_of(parameters, context) if which == "parts" else [(parameters, context)]:
        yield weights_for("W", which, iter(weights)), part


def _parts_of(
    parameters: Sequence[nn.Parameter], context: list[dict[str, Any]]
) -> list[tuple[list[nn.Parameter], Any]]:
    """Return two parts of a weight context, each with its weights; the remaining ones are in the second.

    The context is torch's list of ``param_groups``, which hold the nodes that accumulate into the parameters.
    """
    half = (len(context) + 1) // 2
    first = {id(node.variable) for group in context[:half] for node in group["params"]}
    second = {id(node.variable) for group in context[half:] for node in group["params"]}
    return [
        ([one for one in parameters if id(one) in first], context[:half]),
        ([one for one in parameters if id(one) in second or id(one) not in first], context[half:]),
    ]
