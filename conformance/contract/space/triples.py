"""Rows beyond those of pairs, in which most of the triples of values stand: what profile full runs more."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

from gradconform.covering.dimension import Dimension
from gradconform.covering.space import Placed, Space, Together, Words, covered, in_order
from gradconform.extent import AREA_SHARE

from .dimensions import CONSTRAINTS

#: The share of the triples that is to stand in rows, those of pairs among them.
#: Each row costs time in every run of profile full, and the later ones bring few triples.
SHARE = 0.75

#: How many claims a row may have at most: the more it has, the more targets cannot run it.
MOST_CLAIMS = 6

#: How many rows are filled for each that is taken.
_ATTEMPTS = 6

#: What choices are drawn from.
_SEED = 1


def beyond(dimensions: Sequence[Dimension], rows: Sequence[Words]) -> list[Words]:
    """Return rows that make up, with ``rows``, :data:`SHARE` of the triples of values that can stand together.

    Of all rows together, at most :data:`~gradconform.extent.AREA_SHARE` ask for any one claim of many values.
    """
    space = Space(dimensions, CONSTRAINTS)
    can = set(space.possible(3))
    search = _Search(space, rows, can - covered(rows, 3))
    while len(can) - search.left < SHARE * len(can):
        search.take()
    return search.found


class _Search:
    """What triples stand in no row yet, as what each two values lack, and the rows found for them so far."""

    def __init__(self, space: Space, rows: Sequence[Words], missing: Iterable[Together]) -> None:
        self.found: list[Words] = []
        self.left = 0
        self._space = space
        self._third: defaultdict[Together, set[Placed]] = defaultdict(set)
        for one, other, third in missing:
            self._third[one, other].add(third)
            self._third[one, third].add(other)
            self._third[other, third].add(one)
            self.left += 1
        self._claims = Counter(claim for row in rows for claim in space.claims_of(enumerate(row)))
        self._count = len(rows)
        self._choices = random.Random(_SEED)  # noqa: S311 (an order, no secret)

    def take(self) -> None:
        """Take the best of a few rows, and cross out what it has."""
        row, _ = max((self._filled(self._open()) for _ in range(_ATTEMPTS)), key=lambda filled: filled[1])
        for one, other, third in combinations(enumerate(row), 3):
            self.left -= third in self._third[one, other]
            for pair, last in (((one, other), third), ((one, third), other), ((other, third), one)):
                self._third[pair].discard(last)
        self._claims.update(self._space.claims_of(enumerate(row)))
        self._count += 1
        self.found.append(row)

    def _open(self) -> Space:
        """Return the space without the claims that enough rows ask for."""
        wide = self._space.widely_claimed()
        return self._space.without(claim for claim in wide if self._claims[claim] >= AREA_SHARE * self._count)

    def _filled(self, space: Space) -> tuple[Words, int]:
        """Return a row filled place by place with what brings most triples, and how many it brings."""
        places = range(len(space.words))
        held: dict[int, str] = {}
        brings: Counter[Placed] = Counter()
        gained = 0
        for place in self._choices.sample(places, len(places)):
            words = self._choices.sample(space.words[place], len(space.words[place]))
            ranked = sorted(words, key=lambda word: -brings[place, word])
            word = next(word for word in ranked if self._fits(space, {**held, place: word}))
            gained += brings[place, word]
            for other in held.items():
                brings.update(self._third[in_order((place, word), other)])
            held[place] = word
        return tuple(held[place] for place in places), gained

    def _fits(self, space: Space, held: dict[int, str]) -> bool:
        """Tell whether some row has what is ``held``, and the plainest such row not too many claims."""
        row = space.row_with(held)
        return row is not None and len(space.claims_of(enumerate(row))) <= MOST_CLAIMS
