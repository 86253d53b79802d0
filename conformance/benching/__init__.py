"""The bench of real defects, judged: each by a command of the kit, on the code at fault and on the mended one."""

from __future__ import annotations

from .campaign import judge_bench
from .outcome import Bench, Outcome
from .told import Told

__all__ = ["Bench", "Outcome", "Told", "judge_bench"]
