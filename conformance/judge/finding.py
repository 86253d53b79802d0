"""The results of a judge: findings, one per difference, and the error/bound ratio of each tensor."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

from gradconform.adapter import UnsupportedError
from gradconform.diagnosis.cause import Cause
from gradconform.drive.observation import Frame, Raised
from gradconform.results import JSON_NAMES, Sort, finite
from gradconform.text.findings import finding_line

Kind = Literal[
    "mismatch", "nonfinite", "missing", "unexpected", "unknown_name", "requires_grad", "shape", "dtype", "device",
    "layout", "race", "error", "no_error", "changed", "shared", "alive", "hooks", "not_repeatable",
]  # fmt: skip

#: The kinds of finding about a wrong value, or about one too few or too many.
OF_VALUES = frozenset({"mismatch", "missing", "nonfinite", "unexpected"})

_Judge = TypeVar("_Judge")


class RefusedError(UnsupportedError):
    """A prerequisite of a check was refused or is missing: a wrong claim, or valid if it is not claimed."""


def by_numeric_rule(judge: _Judge) -> _Judge:
    """Mark a judge that compares values with plain autograd's: its explanation shows the numeric rule."""
    vars(judge)["by_numeric_rule"] = True
    return judge


@dataclass(frozen=True, slots=True)
class Measured:
    """The error/bound ratio of one tensor, ``error_ratio``; 0 is bit-equal to plain autograd."""

    error_ratio: float


BIT_EQUAL = Measured(0.0)


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from plain autograd.

    ``where`` names the tensor by path (``layers.0.weight``, ``input 1``), and ``sort`` says what sort of tensor it is:
    a ``parameter gradient``, an ``input gradient`` ... For a ``thing`` (``the session``, ``the loss``) ``where`` says
    all. ``action`` is the first wrong action; ``error`` and ``bound`` are absolute, in the unit of the gradient;
    ``error_ratio`` is their ratio. ``cause`` is the result of the diagnosis, if any; ``raised`` is an error of an
    action that plain autograd does not raise. ``needs`` has the values of a planned row, by dimension, without which
    the row passes; None if nobody has examined them.
    """

    kind: Kind
    where: str
    action: str
    text: str
    error: float | None = None
    bound: float | None = None
    error_ratio: float | None = None
    cause: Cause | None = None
    raised: Raised | None = None
    sort: Sort = "thing"
    needs: Mapping[str, str] | None = None

    def __str__(self) -> str:
        """Return one line of a message."""
        return finding_line(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values, with numbers that JSON can represent."""
        values = {JSON_NAMES.get(one.name, one.name): getattr(self, one.name) for one in fields(self)}
        numbers = {name: finite(values[name]) for name in ("error", "bound", "headroom")}
        raised = None if self.raised is None else str(self.raised)
        of_cause = None if self.cause is None else self.cause.to_dict()
        frames = () if self.raised is None else self.raised.frames
        places = [{"file": frame.file, "line": frame.line} for frame in frames]
        return {
            **values,
            **numbers,
            "raised": raised,
            "cause": of_cause,
            **({"frames": list(map(_frame_line, frames)), "places": places} if frames else {}),
        }


def _frame_line(frame: Frame) -> str:
    """Return a frame as Python writes it, its source in the same line."""
    source = linecache.getline(frame.file, frame.line).strip()
    return f'File "{frame.file}", line {frame.line}, in {frame.function}{f": {source}" if source else ""}'


Judged = Iterator[Finding | Measured]


def findings_in(judged: Iterable[Finding | Measured]) -> list[Finding]:
    """Return the findings."""
    return [seen for seen in judged if isinstance(seen, Finding)]


def error_ratios_in(judged: Iterable[Finding | Measured]) -> list[float]:
    """Return the error/bound ratios, in the order of comparison."""
    return [seen.error_ratio for seen in judged if isinstance(seen, Measured)]


def error_in(action: object, raised: Raised | None, *, reference: str = "plain autograd does not") -> Finding:
    """Return the finding on an action, or a later call that reads gradients, that raised; ``reference`` did not."""
    where = (raised and raised.call) or "the action"
    return Finding("error", where, str(action), f"raised {raised}; {reference}", raised=raised)
