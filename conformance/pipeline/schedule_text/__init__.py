"""Schedules as text: a runtime's reading, validating, placing, merging and lowering before any action runs.

This module has the subject: that part of a pipeline runtime.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from gradconform.target.lookup import TargetError
from gradconform.target.resolve import load_registered

ENTRY_POINTS = "gradconform.pipeline.schedule_text"

#: Cells of each rank in torch's form: ``0F0``, ``1I2``, ``(0F1;1B0)OVERLAP_F_B``; an empty one is a bubble.
Rows = Sequence[Sequence[str]]


class ScheduleText(Protocol):
    """An adapter for a runtime's work on schedules. All schedules are passed as cells of text."""

    name: str

    def rewritten(self, cell: str) -> str:
        """Return a cell parsed and printed again; raise for text that is no action."""

    def placed(self, rows: Rows, stages: int, microbatches: int) -> Mapping[int, int]:
        """Return the rank of each stage of a complete schedule; raise for one that is illegal."""

    def mapping(self, ranks: int, stages: int, style: str) -> Mapping[int, int]:
        """Return the rank of each stage; ``style`` is ``loop`` or ``v``."""

    def merged(self, row: Sequence[str]) -> Sequence[str]:
        """Return a row in which each I that is directly followed by its W has become a B."""

    def lowered(self, rows: Rows, stages: int, microbatches: int) -> Rows:
        """Return the rows with communication (SEND_F, RECV_F, SEND_B, RECV_B) and UNSHARD and RESHARD added."""


def schedule_text_named(target: str) -> ScheduleText:
    """Return the adapter of a registered name (entry-point group ``gradconform.pipeline.schedule_text``) or an object.

    Raises :class:`~gradconform.target.loading.TargetError` if it cannot be found or lacks a method.
    """
    made = load_registered(target, ENTRY_POINTS)
    methods = [name for name in vars(ScheduleText) if not name.startswith("_")]
    missing = [name for name in methods if not callable(getattr(made, name, None))]
    if missing or not hasattr(made, "name"):
        msg = f"target {target!r} has no {(missing or ['name'])[0]}; expected a name and {', '.join(methods)}"
        raise TargetError(msg)
    return cast("ScheduleText", made)
