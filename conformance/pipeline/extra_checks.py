"""Extra checks without processes: their form, and how they run on a subject."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from gradconform.adapter import UnsupportedError
from gradconform.drive.observation import Raised
from gradconform.judge.finding import Finding, Judged, findings_in
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.requirements.clause import Clause
from gradconform.results import Result

#: Takes the subject, a runtime's stage objects or its work on schedules, and yields findings.
Judge = Callable[[Any], Judged]
#: Extra checks of one kind, in order.
ExtraChecks = Mapping[Clause, Judge]


def check(name: str, judge: Callable[..., Judged], **given: Any) -> tuple[Clause, Judge]:
    """Return a check: its judge is called with ``given``, which also fills in the judge's docstring."""
    return Clause.of(name, judge, **given), partial(judge, **given)


def run_extra(subject: Any, checks: ExtraChecks, *, dtype: str, device: str = "cpu") -> Iterator[Result]:
    """Yield one result per check, in order; ``device`` is the device on which ``subject`` is judged."""
    for clause, judge in checks.items():
        started = time.perf_counter()
        with interrupts_seen():
            found = _judged(subject, judge)
        findings, refused = ([], found) if isinstance(found, str) else (found, None)
        reported = {} if refused is None else {"status": "unsupported", "message": refused}
        yield clause.result(device, dtype, findings, duration_s=time.perf_counter() - started, **reported)


def _judged(subject: Any, judge: Judge) -> list[Finding] | str:
    """Return the findings, or the reason why the subject does not claim this feature."""
    try:
        return findings_in(judge(subject))
    except UnsupportedError as error:
        return str(error) or "not claimed"
    except BaseException as error:  # noqa: BLE001 (the subject may raise anything)
        pass_on_an_interrupt(error)
        raised = Raised.of(error)
        return [Finding("error", "the call", "", f"raised {raised}", raised=raised)]
