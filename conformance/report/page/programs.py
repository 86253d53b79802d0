"""The programs that a check ran, as far as a report tells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from gradconform.contract import CHECKS
from gradconform.program import ProgramError, parse
from gradconform.version import CONTRACT_VERSION

if TYPE_CHECKING:
    from gradconform.check import Check
    from gradconform.results import Report, Result

_LINE = "program "


def programs_of(report: Report, result: Result) -> tuple[str, ...]:
    """Return each program once, whole: of the check where it is of this contract, else as the message has it.

    A message cuts a long program, and a check of another contract may have had another one; what is not known for
    certain is left out.
    """
    check = _check(report, result, CHECKS)
    if check is not None:
        return tuple(dict.fromkeys(trial.program for trial in check.trials))
    told = next((line for line in result.message.splitlines() if line.startswith(_LINE)), "")
    programs = told.removeprefix(_LINE).removesuffix(", under plain autograd").split(" | ")
    return tuple(dict.fromkeys(program for program in programs if _is_program(program)))


def _check(report: Report, result: Result, known: Mapping[str, Check]) -> Check | None:
    check = known.get(result.check)
    if report.contract != CONTRACT_VERSION or check is None or check.requirement != result.requirement:
        return None
    return check


def _is_program(text: str) -> bool:
    try:
        return bool(parse(text))
    except ProgramError:
        return False
