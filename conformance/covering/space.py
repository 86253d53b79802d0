"""The coverage of rows: pairs and triples of values, and the pairs that remain without a claim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

from .dimension import Constraint, Dimension, allowed

#: As many values that ask for one claim are many.
_MANY = 4

#: The words of a row, in the order of the dimensions.
Words = tuple[str, ...]
#: A value: the place of its dimension and its word.
Placed = tuple[int, str]
#: Some values.
Together = tuple[Placed, ...]
#: What no row has together, by value.
_Excluded = dict[Placed, set[Placed]]


def covered(rows: Sequence[Words], strength: int) -> set[Together]:
    """Return the combinations of ``strength`` values in the rows."""
    return {found for row in rows for found in combinations(enumerate(row), strength)}


def in_order(one: Placed, other: Placed) -> Together:
    """Return two values as a pair, in the order of their dimensions."""
    return (one, other) if one < other else (other, one)


class Space:
    """The values of dimensions, their claims, and the pairs that no row can have."""

    def __init__(
        self, dimensions: Sequence[Dimension], constraints: Sequence[Constraint], excluded: _Excluded | None = None
    ) -> None:
        """Check every pair of values against every constraint once; ``excluded`` has the results for more values."""
        self.dimensions, self.constraints = tuple(dimensions), tuple(constraints)
        self.words = [dimension.words for dimension in dimensions]
        self.claims = {
            (place, value.word): value.claims
            for place, dimension in enumerate(dimensions)
            for value in dimension.values
        }
        self._excluded = self._find_excluded() if excluded is None else excluded
        self._bits = {one: 1 << number for number, one in enumerate(self._excluded)}
        self._forbids = {one: sum(self._bits[other] for other in some) for one, some in self._excluded.items()}
        self._choices = [
            [(word, self._bits[place, word], self._forbids[place, word]) for word in words]
            for place, words in enumerate(self.words)
        ]
        #: The bits of all values from each dimension on; what is forbidden before decides nothing there.
        self._from = [
            sum(bit for later in self._choices[place:] for _, bit, _ in later) for place in range(len(self.words))
        ]
        #: The bits of every dimension's first value, None if these are no row.
        self._plain = self._find_plain()

    def _find_excluded(self) -> _Excluded:
        names = [dimension.name for dimension in self.dimensions]
        excluded: _Excluded = {one: set() for one in self.claims}
        for one, other in self.together(2):
            if not allowed({names[one[0]]: one[1], names[other[0]]: other[1]}, self.constraints):
                excluded[one].add(other)
                excluded[other].add(one)
        return excluded

    def _find_plain(self) -> int | None:
        if not all(self._choices):
            return None
        first = [choices[0] for choices in self._choices]
        plain = sum(bit for _, bit, _ in first)
        return plain if not any(forbids & plain for _, _, forbids in first) else None

    def together(self, strength: int) -> Iterator[Together]:
        """Yield every combination of ``strength`` values of different dimensions."""
        for places in combinations(range(len(self.words)), strength):
            for words in product(*(self.words[place] for place in places)):
                yield tuple(zip(places, words, strict=True))

    def possible(self, strength: int) -> Iterator[Together]:
        """Yield the combinations that some row can have."""
        return filter(self._can_be_in_a_row, self.together(strength))

    def _can_be_in_a_row(self, together: Together) -> bool:
        forbidden = self._forbidden(together)
        if forbidden is None:
            return False
        if self._plain is not None and not forbidden & self._plain:
            return True
        return self._filled(dict(together), 0, forbidden, set()) is not None

    def _forbidden(self, values: Iterable[Placed]) -> int | None:
        """Return the bits of the values that cannot be in a row with ``values``, None if these cannot be in one row."""
        bits = forbidden = 0
        for one in values:
            bits |= self._bits[one]
            forbidden |= self._forbids[one]
        return None if bits & forbidden else forbidden

    def fits(self, begun: Iterable[Placed]) -> bool:
        """Return whether the values can be in one row, by pairs."""
        return self._forbidden(begun) is not None

    def row_with(self, held: Mapping[int, str]) -> Words | None:
        """Return the plainest row with the ``held`` values, None if there is none."""
        forbidden = self._forbidden(held.items())
        return None if forbidden is None else self._filled(held, 0, forbidden, set())

    def _filled(self, held: Mapping[int, str], place: int, forbidden: int, dead: set[tuple[int, int]]) -> Words | None:
        """Return the plainest end of a row from ``place`` on, with the ``held`` values and no ``forbidden`` one.

        ``dead`` are the places, each with what is forbidden from there on, that are known to have no such end.
        """
        if place == len(self.words):
            return ()
        if place in held:
            end = self._filled(held, place + 1, forbidden, dead)
            return None if end is None else (held[place], *end)
        here = place, forbidden & self._from[place]
        if here in dead:
            return None
        for word, bit, forbids in self._choices[place]:
            if not bit & forbidden:
                end = self._filled(held, place + 1, forbidden | forbids, dead)
                if end is not None:
                    return (word, *end)
        dead.add(here)
        return None

    def claims_of(self, values: Iterable[tuple[int, str]]) -> frozenset[str]:
        """Return the claims of values, of a whole or partial row."""
        return frozenset().union(*(self.claims[one] for one in values))

    def without(self, claims: Iterable[str]) -> Space:
        """Return the space of a target that withholds claims."""
        withheld = frozenset(claims)
        return Space(
            [
                replace(one, values=tuple(value for value in one.values if not value.claims & withheld))
                for one in self.dimensions
            ],
            self.constraints,
            self._excluded,
        )

    def claiming(self) -> list[str]:
        """Return all claims, sorted."""
        return sorted(self.claims_of(self.claims))

    def widely_claimed(self) -> list[str]:
        """Return the claims of :data:`_MANY` or more values, sorted."""
        counts = Counter(claim for claims in self.claims.values() for claim in claims)
        return sorted(claim for claim, values in counts.items() if values >= _MANY)

    def kept(self, rows: Sequence[Words], claim: str) -> tuple[set[Together], set[Together]]:
        """Return the pairs that rows without a claim can have, and those that ``rows`` without it have."""
        can = set(self.without([claim]).possible(2))
        return can, can & covered([row for row in rows if claim not in self.claims_of(enumerate(row))], 2)
