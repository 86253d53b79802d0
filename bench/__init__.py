"""Defects that public issues report: a record of each, and the code at fault beside the mended version of it.

``gradconform bench`` judges all of them by the kit's own commands. A record is data alone; nothing here imports torch
before a target is named.
"""

from __future__ import annotations

from .defect import TARGET, Defect
from .records import DEFECTS

__all__ = ["DEFECTS", "TARGET", "Defect"]
