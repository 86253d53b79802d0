"""Rows with one of their values put back to the plainest: what a failure needs is what it is gone without."""

from __future__ import annotations

from gradconform.covering.dimension import allowed
from gradconform.trial.trial import Trial

from .checks import BEYOND, ROWS
from .dimensions import CONSTRAINTS, DIMENSIONS
from .draft import Row, draft_of

#: The rows of all checks.
_ALL = {**ROWS, **BEYOND}


def special(check: str) -> dict[str, str] | None:
    """Return what is not plain in the row of a check, words by dimension; None where the check has no row."""
    if check not in _ALL:
        return None
    way, row = _ALL[check]
    return {one.name: row[one.name] for one in DIMENSIONS[way] if row[one.name] != one.values[0].word}


def put_back(check: str, dimension: str) -> Trial | None:
    """Return the trial of a check's row with the plainest value of a dimension; None where none may stand there.

    Raises ``KeyError`` for a check that has no row.
    """
    way, row = _ALL[check]
    plain = next(one.values[0].word for one in DIMENSIONS[way] if one.name == dimension)
    plainer: Row = {**row, dimension: plain}
    return draft_of(plainer, DIMENSIONS[way]).trial() if allowed(plainer, CONSTRAINTS) else None
