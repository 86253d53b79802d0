"""Rows with one value reset to the plainest: if a failure disappears with it, the failure needs that value."""

from __future__ import annotations

from gradconform.covering.dimension import allowed
from gradconform.trial.trial import Trial

from .checks import BEYOND, OLD, ROWS
from .dimensions import CONSTRAINTS, DIMENSIONS
from .draft import Row, draft_of

#: The rows of all checks.
_ALL = {**ROWS, **OLD, **BEYOND}


def non_default_values(check: str) -> dict[str, str] | None:
    """Return the non-default words of a check's row by dimension; None if the check has no row."""
    if check not in _ALL:
        return None
    way, row = _ALL[check]
    return {one.name: row[one.name] for one in DIMENSIONS[way] if row[one.name] != one.values[0].word}


def reset_value(check: str, dimension: str) -> Trial | None:
    """Return the trial of a check's row with a dimension's plainest value; None if the row does not allow it.

    Raises ``KeyError`` for a check that has no row.
    """
    way, row = _ALL[check]
    plain = next(one.values[0].word for one in DIMENSIONS[way] if one.name == dimension)
    plainer: Row = {**row, dimension: plain}
    return draft_of(plainer, DIMENSIONS[way]).trial() if allowed(plainer, CONSTRAINTS) else None
