"""The self-test: the contract against every fault and every right variant, on the user's own device."""

from .matrix import KillMatrix
from .subject import Outcome, SelftestOptions, judge_all

__all__ = ["KillMatrix", "Outcome", "SelftestOptions", "judge_all"]
