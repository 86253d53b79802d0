"""Judges the bench of real defects: a command of the kit runs on the code at fault and on the fixed version."""

from __future__ import annotations

from .campaign import judge_bench
from .command_report import CommandReport
from .outcome import Bench, Outcome

__all__ = ["Bench", "CommandReport", "Outcome", "judge_bench"]
