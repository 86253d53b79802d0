"""Mistakes that may occur in every action of a kind, each with plain autograd that makes it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from gradconform.reference.autograd_with_mistake import (
    FULL_INPUT,
    FULL_WEIGHT,
    INPUT,
    WEIGHT,
    Choosing,
    OneMistake,
    Picking,
    Returning,
    Starting,
)

from .cause import Cause, Mistake
from .visible_facts import Added, VisibleFacts

#: Returns whether a mistake may explain the visible facts.
Fits = Callable[[VisibleFacts], bool]

#: The places of a mistake: in added values, in returned values, or in either.
_ADDED = (frozenset({WEIGHT}), frozenset({FULL_WEIGHT}), frozenset({WEIGHT, FULL_WEIGHT}))
_RETURNED = (frozenset({INPUT}), frozenset({FULL_INPUT}), frozenset({INPUT, FULL_INPUT}))
_WHOLE = (
    frozenset({INPUT, WEIGHT}),
    frozenset({FULL_INPUT, FULL_WEIGHT}),
    frozenset({INPUT, WEIGHT, FULL_INPUT, FULL_WEIGHT}),
)


def candidates(seen: VisibleFacts) -> Iterator[tuple[Cause, OneMistake]]:
    """Yield the mistakes that may explain a tensor of ``seen``, each with plain autograd that makes it."""
    for factor in seen.factors:
        for at in (*_ADDED, *_RETURNED, *_WHOLE):
            yield Cause(Mistake.ALL_MULTIPLIED, names=_named(at), factors=(factor,)), OneMistake(at=at, factor=factor)
        for at in _WHOLE:  # a loss has no output gradient, so this is another mistake
            cause = Cause(Mistake.STARTS_MULTIPLIED, names=_named(at), factors=(factor,))
            yield cause, OneMistake(at=at, starts=_multiplied(factor))
    for kind, (made, fits) in _OF_ADDED.items():
        if fits(seen):
            yield from ((Cause(kind, names=_named(at)), OneMistake(at=at, **made)) for at in _ADDED)
    for kind, picks in _OF_CONTEXTS.items() if seen.contexts > 1 else ():
        yield Cause(kind, names=(WEIGHT,)), OneMistake(at=frozenset({WEIGHT}), picks=picks)
    yield from _of_gradients(seen)
    for kind, (made, fits) in _OF_WHAT_IS_PASSED.items():
        if fits(seen):
            yield Cause(kind), OneMistake(at=_WHOLE[-1], **made)


def _of_gradients(seen: VisibleFacts) -> Iterator[tuple[Cause, OneMistake]]:
    """Yield the mistakes with output gradients, and with returned input gradients."""
    for kind, starts in _OF_STARTS.items() if seen.outputs > 1 else ():
        for at in (*_ADDED, *_RETURNED, *_WHOLE):
            yield Cause(kind, names=_named(at)), OneMistake(at=at, starts=starts)
    for kind, (orders, fits) in _OF_ORDER.items():
        if fits(seen):
            yield from ((Cause(kind, names=_named(at)), OneMistake(at=at, orders=orders)) for at in _RETURNED)
    for kind, (returns, fits) in _OF_RETURNED.items():
        if fits(seen):
            yield from ((Cause(kind, names=_named(at)), OneMistake(at=at, returns=returns)) for at in _RETURNED)


def _named(at: frozenset[str]) -> tuple[str, ...]:
    """Return the parts of a backward, both of B by its letter."""
    whole = {FULL_INPUT, FULL_WEIGHT} <= at
    parts = (INPUT, WEIGHT) if whole else (INPUT, WEIGHT, FULL_INPUT, FULL_WEIGHT)
    return (*(part for part in parts if part in at), *(("B",) if whole else ()))


def _of_dimensions(least: int, most: float) -> Choosing:
    return lambda _, __, parameter: not least <= parameter.dim() <= most


def _skipped(seen: VisibleFacts) -> bool:
    return seen.never and (seen.shows(Added.NOTHING) or seen.shows(Added.NOTHING_TO_SOME))


def _of_several(seen: VisibleFacts) -> bool:
    return seen.wrong_inputs and seen.inputs > 1


def _of_many(seen: VisibleFacts) -> bool:
    return seen.wrong_inputs and seen.inputs > 2  # noqa: PLR2004 (swapping two is reversing them)


def _not_returned(seen: VisibleFacts) -> bool:
    return seen.not_returned


def _changed_in_flight(seen: VisibleFacts) -> bool:
    return seen.changed_in_flight


#: The mistakes that may happen as parameters get their gradients, each with a test of the visible facts.
_OF_ADDED: dict[Mistake, tuple[dict[str, Any], Fits]] = {
    Mistake.STANDING_KEPT: (
        {"chooses": lambda _, __, parameter: parameter.grad is None},
        lambda seen: seen.shows(Added.NOTHING_TO_SOME),
    ),
    Mistake.MATRICES_KEPT: (
        {"chooses": lambda _, __, parameter: parameter.grad is None or parameter.dim() < 2},  # noqa: PLR2004 (a matrix)
        lambda seen: seen.shows(Added.NOTHING_TO_SOME),
    ),
    Mistake.STANDING_CLEARED: ({"clears": "arriving"}, lambda seen: seen.shows(Added.ALONE)),
    Mistake.ALL_CLEARED: ({"clears": "all"}, lambda seen: seen.shows(Added.ALONE)),
    Mistake.LAST_PARAMETER_SKIPPED: ({"chooses": lambda place, count, _: place < count - 1}, _skipped),
    Mistake.FIRST_PARAMETER_SKIPPED: ({"chooses": lambda place, _, __: place > 0}, _skipped),
    Mistake.VECTORS_SKIPPED: ({"chooses": _of_dimensions(1, 1)}, _skipped),
    Mistake.MATRICES_SKIPPED: ({"chooses": _of_dimensions(2, math.inf)}, _skipped),
    Mistake.NOTHING_ADDED: ({"chooses": lambda _, __, ___: False}, _skipped),
    Mistake.FIRST_USE_COUNTS: ({"use": 0}, lambda seen: seen.shows(Added.OTHER)),
    Mistake.LAST_USE_COUNTS: ({"use": -1}, lambda seen: seen.shows(Added.OTHER)),
}

#: Mistakes that name which parameters are wrong, each with a test of a parameter by place, count and dimensions.
SELECTING: dict[Mistake, Callable[[int, int, int], bool]] = {
    Mistake.MATRICES_KEPT: lambda _, __, dimensions: dimensions > 1,
    Mistake.LAST_PARAMETER_SKIPPED: lambda place, count, _: place == count - 1,
    Mistake.FIRST_PARAMETER_SKIPPED: lambda place, _, __: place == 0,
    Mistake.VECTORS_SKIPPED: lambda _, __, dimensions: dimensions == 1,
    Mistake.MATRICES_SKIPPED: lambda _, __, dimensions: dimensions > 1,
}

#: Which context a W may take by mistake, of those whose I has finished; 0 is the first micro-batch.
_OF_CONTEXTS: dict[Mistake, Picking] = {
    Mistake.NEWEST_CONTEXT_USED: lambda _, waiting: waiting[-1],
    Mistake.OLDEST_CONTEXT_USED: lambda _, waiting: waiting[0],
}


def _multiplied(factor: float) -> Starting:
    return lambda grads: [factor * grad for grad in grads]


def _last_of_each(grads: Sequence[Tensor]) -> list[Tensor | None]:
    """Return zeros for an output gradient that is also that of a later output."""
    last = {id(grad): place for place, grad in enumerate(grads)}
    return [grad if last[id(grad)] == place else torch.zeros_like(grad) for place, grad in enumerate(grads)]


#: The mistakes with the caller's arguments, each with a test of the visible facts.
_OF_WHAT_IS_PASSED: dict[Mistake, tuple[dict[str, Any], Fits]] = {
    Mistake.FIRST_FORWARD_KEPT: ({"keeps_forward": True}, lambda seen: seen.loses),
    Mistake.ARGUMENTS_COPIED_ONCE: ({"copies": "arguments"}, lambda seen: seen.received == "inputs"),
    Mistake.OUTPUT_GRADS_COPIED_ONCE: (
        {"copies": "output gradients"},
        lambda seen: seen.received == "grads",
    ),
    Mistake.KEPT_BY_OUTPUT_GRAD: ({"starts": _last_of_each}, lambda seen: seen.received == "twice"),
    Mistake.FORWARD_RUNS_AGAIN: ({"again": True}, _changed_in_flight),
    Mistake.WRITES_UNCOUNTED: ({"saves": "uncounted"}, _changed_in_flight),
    Mistake.WEIGHTS_OF_NOW: ({"saves": "by parameter"}, _changed_in_flight),
}

#: The output gradients from which a backward may start by mistake.
_OF_STARTS: dict[Mistake, Starting] = {
    Mistake.FIRST_OUTPUT_COUNTS: lambda grads: [*grads[:1], *(None for _ in grads[1:])],
    Mistake.LAST_OUTPUT_COUNTS: lambda grads: [*(None for _ in grads[:-1]), *grads[-1:]],
    Mistake.LAST_OUTPUT_SKIPPED: lambda grads: [*grads[:-1], *(None for _ in grads[-1:])],
}


def _reversed(_: object, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return grads[::-1]


def _swapped(_: object, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return [*grads[:2][::-1], *grads[2:]]


def _shifted(_: object, grads: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
    return [*grads[1:], *grads[:1]]


def _zeros(args: Sequence[Tensor], grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    return [torch.zeros_like(arg) if grad is None else grad for arg, grad in zip(args, grads, strict=True)]


#: The values that may be returned by mistake.
_OF_RETURNED: dict[Mistake, tuple[Returning, Fits]] = {
    Mistake.INPUTS_REVERSED_NOT_NONE: (_reversed, _of_several),
    Mistake.INPUTS_SWAPPED_NOT_NONE: (_swapped, _of_many),
    Mistake.INPUTS_SHIFTED_NOT_NONE: (_shifted, _of_many),
    Mistake.NOTHING_RETURNED: (lambda _, grads: [None for _ in grads], _not_returned),
    Mistake.FIRST_INPUT_ALONE: (lambda _, grads: [*grads[:1], *(None for _ in grads[1:])], _not_returned),
    Mistake.LAST_INPUT_SKIPPED: (lambda _, grads: [*grads[:-1], *(None for _ in grads[-1:])], _not_returned),
    Mistake.ZEROS_RETURNED: (_zeros, lambda seen: seen.returned_for_none),
}

#: The orders in which the gradients of all arguments, None among them, may be returned.
_OF_ORDER: dict[Mistake, tuple[Returning, Fits]] = {
    Mistake.INPUTS_REVERSED: (_reversed, _of_several),
    Mistake.INPUTS_SWAPPED: (_swapped, _of_many),
    Mistake.INPUTS_SHIFTED: (_shifted, _of_many),
}
