"""docs/space.md, made from the dimensions and the frozen rows: ``gradconform contract --space > docs/space.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gradconform.contract.space.dimensions import CONSTRAINTS, DIMENSIONS
from gradconform.contract.space.rows import ROWS, TRIPLES, frozen_rows
from gradconform.contract.space.triples import MOST_CLAIMS, SHARE
from gradconform.contract.space.uncovered import UNCOVERED
from gradconform.coverage import AREA_SHARE
from gradconform.covering.dimension import Dimension
from gradconform.covering.space import Space, Words, covered

from .page.rendering import render_own


def space_page() -> str:
    """Return the text of docs/space.md."""
    rows, beyond = frozen_rows(ROWS), frozen_rows(TRIPLES)
    text = render_own(
        "space.md.j2",
        ways=[reported for way in DIMENSIONS for reported in _ways(way, rows[way], beyond[way])],
        share=f"{SHARE:.0%}",
        most_claims=MOST_CLAIMS,
        area_share=f"{AREA_SHARE:.0%}",
        wide=sorted({claim for some in DIMENSIONS.values() for claim in Space(some, CONSTRAINTS).widely_claimed()}),
        claim_columns=["claim", *(column for way in DIMENSIONS for column in (f"rows of {way}", "pairs left"))],
        claims=_claims(rows),
        dimensions=[_dimension(name, rows) for name in _names()],
        constraints=[(one.because, _words(one.these), _words(one.those)) for one in CONSTRAINTS],
        uncovered=[(one.what, one.because, ", ".join(f"`{c}`" for c in one.checks) or "none") for one in UNCOVERED],
        names=["", *_names()[1:]],
        pairs=[(way, _pairs(DIMENSIONS[way], rows[way])) for way in DIMENSIONS],
    )
    return text.rstrip() + "\n"


def _names() -> list[str]:
    return list(dict.fromkeys(dimension.name for some in DIMENSIONS.values() for dimension in some))


def _ways(way: str, rows: Sequence[Words], beyond: Sequence[Words]) -> Iterator[tuple[str, ...]]:
    """Yield a line per profile: a way's number of rows, and the pairs and triples that they cover."""
    for profile, some in (("standard", rows), ("full", [*rows, *beyond])):
        yield way, profile, str(len(some)), *_shares(way, some)


def _shares(way: str, rows: Sequence[Words]) -> tuple[str, str]:
    """Return the covered share of the possible pairs and triples."""
    reported = []
    for strength in (2, 3):
        can, do = set(Space(DIMENSIONS[way], CONSTRAINTS).possible(strength)), covered(rows, strength)
        reported.append(f"{len(can & do)} of {len(can)} ({len(can & do) / len(can):.0%})")
    return reported[0], reported[1]


def _claims(rows: Mapping[str, Sequence[Words]]) -> list[tuple[str, ...]]:
    """Return a line per claim: the rows of each way that need it, and the covered pairs that do not."""
    reported: dict[str, list[str]] = {}
    for number, (way, dimensions) in enumerate(DIMENSIONS.items()):
        space = Space(dimensions, CONSTRAINTS)
        for claim in space.claiming():
            asking = sum(claim in space.claims_of(enumerate(row)) for row in rows[way])
            can, do = space.kept(rows[way], claim)
            cells = reported.setdefault(claim, ["", ""] * len(DIMENSIONS))
            cells[2 * number : 2 * number + 2] = str(asking), f"{len(do)} of {len(can)} ({len(do) / len(can):.0%})"
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


def _pairs(dimensions: Sequence[Dimension], rows: Sequence[Words]) -> list[list[str]]:
    """Return a line per dimension: for each later dimension, the covered pairs of the possible ones."""
    can = Counter(tuple(place for place, _ in pair) for pair in Space(dimensions, CONSTRAINTS).possible(2))
    do = Counter(tuple(place for place, _ in pair) for pair in covered(rows, 2))
    places = range(len(dimensions))
    return [
        [dimensions[one].name, *(f"{do[one, other]}/{can[one, other]}" if one < other else "" for other in places[1:])]
        for one in places[:-1]
    ]
