"""docs/space.md, made from the dimensions and the frozen rows: ``gradconform contract --space > docs/space.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gradconform.contract.space.dimensions import CONSTRAINTS, DIMENSIONS
from gradconform.contract.space.rows import TRIPLES, current_rows, frozen_rows
from gradconform.contract.space.triples import MOST_CLAIMS, SHARE
from gradconform.contract.space.uncovered import UNCOVERED
from gradconform.coverage import AREA_SHARE
from gradconform.covering.space import Space, Together, Words, covered

from .page.rendering import render_own


def space_page() -> str:
    """Return the text of docs/space.md."""
    rows, beyond = current_rows(), frozen_rows(TRIPLES)
    spaces = {way: Space(dimensions, CONSTRAINTS) for way, dimensions in DIMENSIONS.items()}
    text = render_own(
        "space.md.j2",
        ways=[reported for way, space in spaces.items() for reported in _ways(way, space, rows[way], beyond[way])],
        share=f"{SHARE:.0%}",
        most_claims=MOST_CLAIMS,
        area_share=f"{AREA_SHARE:.0%}",
        wide=sorted({claim for space in spaces.values() for claim in space.widely_claimed()}),
        claim_columns=["claim", *(column for way in DIMENSIONS for column in (f"rows of {way}", "pairs left"))],
        claims=_claims(spaces, rows),
        dimensions=[_dimension(name, rows) for name in _names()],
        constraints=[(one.because, _words(one.these), _words(one.those)) for one in CONSTRAINTS],
        uncovered=[(one.what, one.because, ", ".join(f"`{c}`" for c in one.checks) or "none") for one in UNCOVERED],
        names=["", *_names()[1:]],
        pairs=[(way, _pairs(space, rows[way])) for way, space in spaces.items()],
    )
    return text.rstrip() + "\n"


def _names() -> list[str]:
    return list(dict.fromkeys(dimension.name for some in DIMENSIONS.values() for dimension in some))


def _ways(way: str, space: Space, rows: Sequence[Words], beyond: Sequence[Words]) -> Iterator[tuple[str, ...]]:
    """Yield a line per profile: a way's number of rows, and the pairs and triples that they cover."""
    possible = {strength: set(space.possible(strength)) for strength in (2, 3)}
    for profile, some in (("standard", rows), ("full", [*rows, *beyond])):
        yield way, profile, str(len(some)), *(_share(can, covered(some, size)) for size, can in possible.items())


def _share(can: set[Together], do: set[Together]) -> str:
    """Return the covered share of the possible combinations."""
    return f"{len(can & do)} of {len(can)} ({len(can & do) / len(can):.0%})"


def _claims(spaces: Mapping[str, Space], rows: Mapping[str, Sequence[Words]]) -> list[tuple[str, ...]]:
    """Return a line per claim: the rows of each way that need it, and the covered pairs that do not."""
    reported: dict[str, list[str]] = {}
    for number, (way, space) in enumerate(spaces.items()):
        for claim in space.claiming():
            asking = sum(claim in space.claims_of(enumerate(row)) for row in rows[way])
            cells = reported.setdefault(claim, ["", ""] * len(spaces))
            cells[2 * number : 2 * number + 2] = str(asking), _share(*space.kept(rows[way], claim))
    return [(claim, *cells) for claim, cells in sorted(reported.items())]


def _dimension(name: str, rows: dict[str, list[Words]]) -> tuple[str, str, list[tuple[str, str, str, str]]]:
    """Return a dimension, its meaning, and a line per value: word, meaning, claims and number of rows."""
    found: dict[str, tuple[str, str]] = {}
    counts: Counter[str] = Counter()
    description = ""
    for way, dimensions in DIMENSIONS.items():
        for place, dimension in enumerate(dimensions):
            if dimension.name == name:
                description = dimension.description
                counts.update(row[place] for row in rows[way])
                found |= {value.word: (value.phrase, ", ".join(sorted(value.claims))) for value in dimension.values}
    return name, description, [(word, phrase, claims, str(counts[word])) for word, (phrase, claims) in found.items()]


def _words(words: Mapping[str, frozenset[str]]) -> str:
    return "; ".join(f"{name}: {', '.join(sorted(some))}" for name, some in words.items())


def _pairs(space: Space, rows: Sequence[Words]) -> list[list[str]]:
    """Return a line per dimension: for each later dimension, the covered pairs of the possible ones."""
    can = Counter(tuple(place for place, _ in pair) for pair in space.possible(2))
    do = Counter(tuple(place for place, _ in pair) for pair in covered(rows, 2))
    names = [dimension.name for dimension in space.dimensions]
    places = range(len(names))
    return [
        [names[one], *(f"{do[one, other]}/{can[one, other]}" if one < other else "" for other in places[1:])]
        for one in places[:-1]
    ]
