"""Defects from public issues: a record of each, and the code at fault with its fixed version.

``gradconform bench`` judges all of them by the kit's own commands. A record is only data; nothing here imports torch
before a target is named.
"""

from __future__ import annotations

from .defect import TARGET, Defect
from .records import DEFECTS

__all__ = ["DEFECTS", "TARGET", "Defect"]
