"""The space: a check per row of the covering arrays over all that a trial can differ in."""

from __future__ import annotations

from gradconform.contract.check import Judge, family
from gradconform.judge import whole
from gradconform.trial.trial import Trial

from .covering import Words
from .dimensions import DIMENSIONS
from .draft import Row, draft_of
from .rows import frozen_rows, named

_ROWS = {way: named(DIMENSIONS[way], rows) for way, rows in frozen_rows().items()}


#: The way and the row of each check, by the check's id.
ROWS: dict[str, tuple[str, Row]] = {
    f"space.{way}.{name}": (way, {one.name: word for one, word in zip(DIMENSIONS[way], row, strict=True)})
    for way, rows in _ROWS.items()
    for name, row in rows.items()
}


def _trials(way: str) -> dict[str, Trial]:
    return {name: draft_of(ROWS[f"space.{way}.{name}"][1], DIMENSIONS[way]).trial() for name in _ROWS[way]}


def _said(way: str) -> dict[str, str]:
    return {name: in_words(way, row) for name, row in _ROWS[way].items()}


def in_words(way: str, row: Words) -> str:
    """Say a row in words that follow "with": what is not plain in it."""
    told = [
        dimension.value(word).said
        for dimension, word in zip(DIMENSIONS[way], row, strict=True)
        if word != dimension.values[0].word
    ]
    return ", ".join(told) or "nothing special"


@family("space.full", _trials("full"), said=_said("full"))
def full() -> Judge:
    """B MUST give the gradients of plain autograd, and change nothing else, with {said}.

    What is right for each of two things need not be right for both. Every pair of values that can stand together does
    so in one of these checks; docs/space.md shows which.

    Catches: a mistake that takes two things together, or one that no other check has.
    """
    return whole


@family("space.split", _trials("split"), said=_said("split"))
def split() -> Judge:
    """I and W MUST give the gradients of plain autograd, and change nothing else, with {said}.

    What is right for each of two things need not be right for both. Every pair of values that can stand together does
    so in one of these checks, apart from those of B; docs/space.md shows which.

    Catches: a mistake of I or W that takes two things together, or one that no other check has.
    """
    return whole
