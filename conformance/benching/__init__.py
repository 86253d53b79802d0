"""Judges the bench of real defects: a command of the kit runs on the code at fault and on the fixed version."""

from __future__ import annotations

from .campaign import judge_bench
from .outcome import Bench, Outcome
from .told import Told

__all__ = ["Bench", "Outcome", "Told", "judge_bench"]
