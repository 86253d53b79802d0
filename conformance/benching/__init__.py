"""The bench of real defects, judged: each by a command of the kit, on the code at fault and on the mended one."""

from __future__ import annotations

from .campaign import judge_bench
from .command_report import CommandReport
from .outcome import Bench, Outcome

__all__ = ["Bench", "CommandReport", "Outcome", "judge_bench"]
