"""Covering arrays: rows in which every pair, or every triple, of values stands that can stand together.

They are begun by allpairspy, which development alone needs: the rows are frozen in a file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

from .dimension import Dimension
from .dimensions import allowed

#: How many rows are filled for each that is taken.
_ATTEMPTS = 12

#: The words of a row, in the order of the dimensions.
Words = tuple[str, ...]
#: Some values, each the place of its dimension and its word.
Together = tuple[tuple[int, str], ...]


def covered(rows: Sequence[Words], strength: int) -> set[Together]:
    """Return what of ``strength`` values stands together in the rows."""
    return {found for row in rows for found in combinations(enumerate(row), strength)}


class Space:
    """The values of dimensions, and which two of them no row has together."""

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        """Ask every constraint of every two values, once."""
        self.words = [[value.word for value in dimension.values] for dimension in dimensions]
        self.free = [[value.word for value in dimension.values if not value.claims] for dimension in dimensions]
        names = [dimension.name for dimension in dimensions]
        self._apart: set[Together] = set()
        for one, other in self.together(2):
            if not allowed({names[one[0]]: one[1], names[other[0]]: other[1]}):
                self._apart |= {(one, other), (other, one)}

    def together(self, strength: int) -> Iterator[Together]:
        """Yield every choice of ``strength`` values of as many dimensions."""
        for places in combinations(range(len(self.words)), strength):
            for words in product(*(self.words[place] for place in places)):
                yield tuple(zip(places, words, strict=True))

    def possible(self, strength: int) -> Iterator[Together]:
        """Yield those of them that stand in some row."""
        return (together for together in self.together(strength) if self.row_with(dict(together)) is not None)

    def fits(self, begun: Iterable[tuple[int, str]]) -> bool:
        """Tell whether no two of some values are apart."""
        return not any(pair in self._apart for pair in combinations(begun, 2))

    def row_with(self, held: Mapping[int, str]) -> Words | None:
        """Return a row that has what is ``held``, the plainest one, None where there is none."""
        if not self.fits(held.items()):
            return None
        place = next((place for place in range(len(self.words)) if place not in held), None)
        if place is None:
            return tuple(held[place] for place in range(len(self.words)))
        found = (self.row_with({**held, place: word}) for word in self._beside(held, place))
        return next((row for row in found if row is not None), None)

    def _beside(self, held: Mapping[int, str], place: int) -> Iterator[str]:
        return (w for w in self.words[place] if not any(((place, w), one) in self._apart for one in held.items()))


def array(dimensions: Sequence[Dimension]) -> list[Words]:
    """Return rows that have every possible pair of values.

    What needs no claim is covered first and by itself, so that each value that does need one stands in few rows, and a
    target that withholds a claim loses few. Raises ``ModuleNotFoundError`` where allpairspy is not installed.
    """
    space = Space(dimensions)
    plain = _of_library(space, space.free, [])
    rows = [*plain, *_of_library(space, space.words, plain)]
    left = set(space.possible(2)) - covered(rows, 2)
    while left:
        rows.append(_packed(space, left))
        left -= covered(rows[-1:], 2)
    return _plainer(space, _needed(rows))


def _of_library(space: Space, words: Sequence[Sequence[str]], before: Sequence[Words]) -> list[Words]:
    from allpairspy import AllPairs  # noqa: PLC0415 (a library of development, not of a run)

    def fits(begun: Sequence[str]) -> bool:
        return space.fits(enumerate(begun))

    made = AllPairs([list(some) for some in words], fits, [list(row) for row in before])
    return [tuple(row) for row in made]


def _packed(space: Space, left: set[Together]) -> Words:
    """Return a row with much of what is ``left``: the best of a few, each filled from where a choice is made.

    The library ends where its next row would add nothing, which under constraints is long before all stands in rows.
    """
    choices = random.Random(len(left))  # noqa: S311 (an order, no secret: the same one each time)
    begun = sorted(left)
    several = [_filled(space, dict(choices.choice(begun)), left, choices) for _ in range(_ATTEMPTS)]
    return max(several, key=lambda row: len(left & set(combinations(enumerate(row), 2))))


def _filled(space: Space, held: dict[int, str], left: set[Together], choices: random.Random) -> Words:
    """Return a row that has what is ``held`` and, place by place, the word with which most of what is left comes."""
    places = [place for place in range(len(space.words)) if place not in held]
    for place in choices.sample(places, len(places)):
        words = choices.sample(space.words[place], len(space.words[place]))
        fitting = [word for word in words if space.row_with({**held, place: word}) is not None]
        held[place] = max(fitting, key=lambda word: sum(_pair((place, word), one) in left for one in held.items()))
    return tuple(held[place] for place in range(len(space.words)))


def _pair(one: tuple[int, str], other: tuple[int, str]) -> Together:
    return (one, other) if one < other else (other, one)


def _needed(rows: Sequence[Words]) -> list[Words]:
    """Return the rows without those whose pairs all stand in others; the last ones go first."""
    counts: Counter[Together] = Counter(found for row in rows for found in combinations(enumerate(row), 2))
    needed = []
    for row in reversed(rows):
        own = list(combinations(enumerate(row), 2))
        if any(counts[found] == 1 for found in own):
            needed.append(row)
        else:
            counts.subtract(own)
    return needed[::-1]


def _plainer(space: Space, rows: Sequence[Words]) -> list[Words]:
    """Return the rows with plain values wherever nothing is lost by it: what is not needed only hides what is."""
    counts: Counter[Together] = Counter(found for row in rows for found in combinations(enumerate(row), 2))
    plainer = []
    for row in rows:
        held = dict(enumerate(row))
        for place, words in enumerate(space.words):
            others = [one for one in held.items() if one[0] != place]
            own = [_pair((place, held[place]), one) for one in others]
            if (
                held[place] == words[0]
                or any(counts[pair] == 1 for pair in own)
                or not space.fits([*others, (place, words[0])])
            ):
                continue
            counts.subtract(own)
            counts.update(_pair((place, words[0]), one) for one in others)
            held[place] = words[0]
        plainer.append(tuple(held[place] for place in range(len(row))))
    return plainer
