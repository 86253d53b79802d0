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
        self.words = [[value.word for value in dimension.values] for dimension in dimensions]
        self.claims = {
            (place, value.word): value.claims
            for place, dimension in enumerate(dimensions)
            for value in dimension.values
        }
        self._excluded = self._find_excluded() if excluded is None else excluded

    def _find_excluded(self) -> _Excluded:
        names = [dimension.name for dimension in self.dimensions]
        excluded: _Excluded = {one: set() for one in self.claims}
        for one, other in self.together(2):
            if not allowed({names[one[0]]: one[1], names[other[0]]: other[1]}, self.constraints):
                excluded[one].add(other)
                excluded[other].add(one)
        return excluded

    def together(self, strength: int) -> Iterator[Together]:
        """Yield every combination of ``strength`` values of different dimensions."""
        for places in combinations(range(len(self.words)), strength):
            for words in product(*(self.words[place] for place in places)):
                yield tuple(zip(places, words, strict=True))

    def possible(self, strength: int) -> Iterator[Together]:
        """Yield the combinations that some row can have."""
        return (together for together in self.together(strength) if self.row_with(dict(together)) is not None)

    def fits(self, begun: Iterable[tuple[int, str]]) -> bool:
        """Return whether the values can be in one row, by pairs."""
        values = set(begun)
        return all(self._excluded[one].isdisjoint(values) for one in values)

    def row_with(self, held: Mapping[int, str]) -> Words | None:
        """Return the plainest row with the ``held`` values, None if there is none."""
        return self._filled(dict(held), 0) if self.fits(held.items()) else None

    def _filled(self, held: dict[int, str], place: int) -> Words | None:
        """Return the plainest row with the ``held`` values, complete before ``place``."""
        if place == len(self.words):
            return tuple(held[one] for one in range(place))
        if place in held:
            return self._filled(held, place + 1)
        for word in self.words[place]:
            if self._excluded[place, word].isdisjoint(held.items()):
                row = self._filled({**held, place: word}, place + 1)
                if row is not None:
                    return row
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
