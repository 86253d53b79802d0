"""Planned space: one check per row of the covering arrays over the dimensions of a trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gradconform.contract.check import Judge, family
from gradconform.covering.rows import named
from gradconform.covering.space import Words
from gradconform.judge import all_requirements
from gradconform.trial.trial import Trial

from . import rows
from .dimensions import DIMENSIONS
from .draft import Row, draft_of

#: The way and the row of checks, by the check's id.
Placed = Mapping[str, tuple[str, Row]]


def _placed(file: Path, check: str) -> Placed:
    """Return the rows of a file by id; ``check`` is the id's template for the way and the row's name."""
    return {
        check.format(way, name): (way, {one.name: word for one, word in zip(DIMENSIONS[way], row, strict=True)})
        for way, some in rows.frozen_rows(file).items()
        for name, row in named(DIMENSIONS[way], some).items()
    }


_FIRST, _LATER = _placed(rows.ROWS, "space.{}.{}"), _placed(rows.LATER, "space.{}.later-{}")

#: The rows of pairs that contract 1.0 alone has.
OLD = {check: (way, row) for check, (way, row) in _FIRST.items() if not rows.stays(way, tuple(row.values()))}
_KEPT = {check: placed for check, placed in _FIRST.items() if check not in OLD}

#: Every row of pairs of the newest contract, of profile standard.
ROWS = {**_KEPT, **_LATER}

#: Every row of triples, which profile full runs in addition.
BEYOND = _placed(rows.TRIPLES, "space.triples.{}-{}")


def _of(placed: Placed, wanted: str) -> dict[str, Row]:
    """Return the rows of one way by the last part of the check's id."""
    return {check.rpartition(".")[2]: row for check, (way, row) in placed.items() if way == wanted}


def _trials(placed: Placed, way: str) -> dict[str, Trial]:
    return {case: draft_of(row, DIMENSIONS[way]).trial() for case, row in _of(placed, way).items()}


def _phrases(placed: Placed, way: str) -> dict[str, str]:
    return {case: in_words(way, tuple(row.values())) for case, row in _of(placed, way).items()}


def in_words(way: str, row: Words) -> str:
    """Describe the row's non-default values, to follow the word "with"."""
    described = [
        dimension.value(word).phrase
        for dimension, word in zip(DIMENSIONS[way], row, strict=True)
        if word != dimension.values[0].word
    ]
    return "; ".join(described) or "default values only"


@family("space.triples", _trials(BEYOND, "full"), phrases=_phrases(BEYOND, "full"), profile="full")
@family("space.full", _trials(OLD, "full"), phrases=_phrases(OLD, "full"), until="1.1")
@family("space.full", _trials(_LATER, "full"), phrases=_phrases(_LATER, "full"), since="1.1")
@family("space.full", _trials(_KEPT, "full"), phrases=_phrases(_KEPT, "full"))
def full() -> Judge:
    """B MUST give the gradients of plain autograd and change nothing else, with: {phrase}.

    Two features that each work alone can fail together; standard rows combine every possible pair, and full rows most
    triples.

    Catches: a mistake that needs two or three values together, or that no other check finds.
    """
    return all_requirements


@family("space.triples", _trials(BEYOND, "split"), phrases=_phrases(BEYOND, "split"), profile="full")
@family("space.split", _trials(OLD, "split"), phrases=_phrases(OLD, "split"), until="1.1")
@family("space.split", _trials(_LATER, "split"), phrases=_phrases(_LATER, "split"), since="1.1")
@family("space.split", _trials(_KEPT, "split"), phrases=_phrases(_KEPT, "split"))
def split() -> Judge:
    """I and W MUST give the gradients of plain autograd and change nothing else, with: {phrase}.

    Two features that each work alone can fail together; standard rows combine every possible pair, and full rows most
    triples.

    Catches: a mistake of I or W that needs two or three values together, or that no other check finds.
    """
    return all_requirements
