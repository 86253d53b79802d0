"""Searches covering arrays: rows with every possible pair of values, of which any one withheld claim loses few.

allpairspy, a development dependency, makes the first rows; the results are frozen in a file.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from .dimension import Constraint, Dimension
from .space import Space, Together, Words, in_order

#: How many rows are filled for each that is taken.
_ATTEMPTS = 12

#: What choices are drawn from. Of the first few it is the one whose rows real targets lose fewest of.
_SEED = 1

#: A pair, and the claim that its row must not have; empty if the row may claim anything.
Demand = tuple[Together, str]


def array(
    dimensions: Sequence[Dimension], constraints: Sequence[Constraint], begun: Sequence[Words] = ()
) -> list[Words]:
    """Return rows with every possible pair of values; ``begun`` rows are kept and completed.

    For each claim of many values, any two values without claims are in some row without that claim. So a target that
    withholds only this claim loses none of these pairs. Raises ``ModuleNotFoundError`` if allpairspy is not installed.
    """
    space = Space(dimensions, constraints)
    search = _Search(space)
    rows = list(begun) or _of_library(space)
    for row in rows:
        search.take(row)
    while search.left:
        rows.append(search.best())
        search.take(rows[-1])
    return rows if begun else _plainer(search, _needed(search, rows))


def _of_library(space: Space) -> list[Words]:
    """Return the rows of the library, which ends when its next row would add nothing.

    With constraints, many pairs are missing by then.
    """
    from allpairspy import AllPairs  # noqa: PLC0415 (a library of development, not of a run)

    def fits(begun: Sequence[str]) -> bool:
        return space.fits(enumerate(begun))

    return [tuple(row) for row in AllPairs(space.words, fits)]


class _Search:
    """The demands that no row meets yet, with each claim as one bit of a number."""

    def __init__(self, space: Space) -> None:
        self.space = space
        self._kinds = ["", *space.widely_claimed()]
        self._bits = {one: self._bits_without(claims) for one, claims in space.claims.items()}
        self.demanded = self._demanded()
        self.left = dict(self.demanded)
        self._choices = random.Random(_SEED)  # noqa: S311 (an order, no secret)

    def _bits_without(self, claims: frozenset[str]) -> int:
        return sum(1 << place for place, claim in enumerate(self._kinds) if claim not in claims)

    def _demanded(self) -> dict[Together, int]:
        found = dict.fromkeys(self.space.possible(2), 1)
        for place, claim in enumerate(self._kinds[1:], 1):
            for pair in self.space.without([claim]).possible(2):
                if not self.space.claims_of(pair):
                    found[pair] |= 1 << place
        return found

    def bits(self, row: Words) -> int:
        """Return the demands that a row can meet, by kind."""
        found = -1
        for one in enumerate(row):
            found &= self._bits[one]
        return found

    def met(self, row: Words) -> list[Demand]:
        """Return the demands that a row meets, including those of other rows."""
        bits = self.bits(row)
        return [
            (pair, claim)
            for pair in combinations(enumerate(row), 2)
            for place, claim in enumerate(self._kinds)
            if self.demanded[pair] & bits & 1 << place
        ]

    def take(self, row: Words) -> None:
        """Remove the demands that a row meets."""
        bits = self.bits(row)
        for pair in combinations(enumerate(row), 2):
            self.left[pair] = self.left.get(pair, 0) & ~bits
            if not self.left[pair]:
                del self.left[pair]

    def best(self) -> Words:
        """Return a row that meets many remaining demands: the best of a few, each filled from a different start."""
        begun = list(self.left)
        return max((self._filled(dict(self._choices.choice(begun))) for _ in range(_ATTEMPTS)), key=self._worth)

    def _worth(self, row: Words) -> int:
        bits = self.bits(row)
        return sum((self.left.get(pair, 0) & bits).bit_count() for pair in combinations(enumerate(row), 2))

    def _filled(self, held: dict[int, str]) -> Words:
        """Return a row with the ``held`` words; each other place gets the word that meets most remaining demands."""
        places = [place for place in range(len(self.space.words)) if place not in held]
        for place in self._choices.sample(places, len(places)):
            words = self._choices.sample(self.space.words[place], len(self.space.words[place]))
            ranked = sorted(words, key=lambda word: -self._gain(held, (place, word)))
            held[place] = next(word for word in ranked if self.space.row_with({**held, place: word}) is not None)
        return tuple(held[place] for place in range(len(self.space.words)))

    def _gain(self, held: dict[int, str], one: tuple[int, str]) -> int:
        """Return the demands that a value adds to a partial row, minus those that its claims remove."""
        before = -1
        for other in held.items():
            before &= self._bits[other]
        now = before & self._bits[one]
        gain = sum((self.left.get(in_order(one, other), 0) & now).bit_count() for other in held.items())
        if lost := before & ~now:
            gain -= sum((self.left.get(pair, 0) & lost).bit_count() for pair in combinations(sorted(held.items()), 2))
        return gain


def _needed(search: _Search, rows: Sequence[Words]) -> list[Words]:
    """Return the rows without redundant ones; the last ones are removed first."""
    counts: Counter[Demand] = Counter(demand for row in rows for demand in search.met(row))
    needed = []
    for row in reversed(rows):
        own = search.met(row)
        if any(counts[demand] == 1 for demand in own):
            needed.append(row)
        else:
            counts.subtract(own)
    return needed[::-1]


def _plainer(search: _Search, rows: Sequence[Words]) -> list[Words]:
    """Return the rows with as many plain values as possible: a value that is not needed only hides others.

    The values with most claims are replaced first, in all rows.
    """
    counts: Counter[Demand] = Counter(demand for row in rows for demand in search.met(row))
    found = list(rows)
    cells = [(number, one) for number, row in enumerate(rows) for one in enumerate(row)]
    for number, (place, _) in sorted(cells, key=lambda cell: -len(search.space.claims[cell[1]])):
        row = found[number]
        put = (*row[:place], search.space.words[place][0], *row[place + 1 :])
        if put == row or not search.space.fits(enumerate(put)):
            continue
        lost = Counter(search.met(row))
        lost.subtract(search.met(put))
        if not any(counts[demand] <= times for demand, times in lost.items() if times > 0):
            counts.subtract(lost)
            found[number] = put
    return found
