"""The self-test: the contract against every fault and every right variant, on the user's own device."""

from .judging import judge_all
from .matrix import KillMatrix
from .subject import Outcome, SelftestOptions

__all__ = ["KillMatrix", "Outcome", "SelftestOptions", "judge_all"]
