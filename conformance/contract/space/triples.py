"""Rows in addition to those of pairs that cover most triples of values; profile full runs them too."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations

from gradconform.coverage import AREA_SHARE
from gradconform.covering.dimension import Dimension
from gradconform.covering.space import Placed, Space, Together, Words, covered, in_order

from .dimensions import CONSTRAINTS

#: The share of the triples that the rows must cover, together with those of pairs. Each row costs time in every run of
#: profile full, and later rows add few triples.
SHARE = 0.75

#: The most claims of a row: with more claims, more targets cannot run it.
MOST_CLAIMS = 6

#: The number of candidate rows for each row that is taken.
_ATTEMPTS = 6

#: The seed of the random choices.
_SEED = 1


def beyond(dimensions: Sequence[Dimension], rows: Sequence[Words]) -> list[Words]:
    """Return rows that cover, with ``rows``, :data:`SHARE` of the possible triples of values.

    Of all rows together, at most :data:`~gradconform.coverage.AREA_SHARE` require any one claim of many values.
    """
    space = Space(dimensions, CONSTRAINTS)
    can = set(space.possible(3))
    search = _Search(space, rows, can - covered(rows, 3))
    while len(can) - search.left < SHARE * len(can):
        search.take()
    return search.found


class _Search:
    """The uncovered triples, as the values that each pair lacks, and the rows found for them so far."""

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
        """Add the best of a few candidate rows, and remove the triples that it covers."""
        row, _ = max((self._filled(self._open()) for _ in range(_ATTEMPTS)), key=lambda filled: filled[1])
        for one, other, third in combinations(enumerate(row), 3):
            self.left -= third in self._third[one, other]
            for pair, last in (((one, other), third), ((one, third), other), ((other, third), one)):
                self._third[pair].discard(last)
        self._claims.update(self._space.claims_of(enumerate(row)))
        self._count += 1
        self.found.append(row)

    def _open(self) -> Space:
        """Return the space without the claims that enough rows require."""
        wide = self._space.widely_claimed()
        return self._space.without(claim for claim in wide if self._claims[claim] >= AREA_SHARE * self._count)

    def _filled(self, space: Space) -> tuple[Words, int]:
        """Return a row, filled position by position with the value that adds most triples, and how many it adds."""
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
        """Return whether a row can have the values in ``held``, and the plainest one has few enough claims."""
        row = space.row_with(held)
        return row is not None and len(space.claims_of(enumerate(row))) <= MOST_CLAIMS
