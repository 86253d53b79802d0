"""What is judged of all trials of a check together: each is read by itself, and the readings are judged at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradconform.drive.evidence import Evidence

from .finding import Judged


@dataclass(frozen=True, slots=True)
class Pooled:
    """How the trials of a check are judged together, once each of them by itself shows nothing wrong.

    ``read`` takes from a trial what is needed of it, ``judge`` judges the readings of all, and ``settled`` tells, of
    the readings so far and the number of trials, whether those to come can change nothing any more.
    """

    read: Callable[[Evidence], Any]
    judge: Callable[[Sequence[Any]], Judged]
    settled: Callable[[Sequence[Any], int], bool]
