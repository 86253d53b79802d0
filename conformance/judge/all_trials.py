"""Judges all trials of a check together: each trial is read separately, and the readings are judged at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradconform.drive.evidence import Evidence

from .finding import Judged


@dataclass(frozen=True, slots=True)
class Pooled:
    """The functions that judge the trials of a check together, once each alone shows nothing wrong.

    ``read`` takes the needed values from a trial, and ``judge`` judges the readings of all. ``settled`` takes the
    readings so far and the number of trials, and returns whether the remaining trials cannot change the result.
    """

    read: Callable[[Evidence], Any]
    judge: Callable[[Sequence[Any]], Judged]
    settled: Callable[[Sequence[Any], int], bool]
