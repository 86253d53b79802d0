"""The self-test: the contract against every fault and every right variant, on the user's own device."""

from gradconform.selftest.matrix import KillMatrix
from gradconform.selftest.subject import Outcome, Question
from gradconform.selftest.workers import judge_all

__all__ = ["KillMatrix", "Outcome", "Question", "judge_all"]
