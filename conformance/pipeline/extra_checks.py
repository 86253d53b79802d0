"""Extra checks without processes: their form, and how they run on a subject."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

from gradconform.adapter import UnsupportedError
from gradconform.drive.observation import Raised
from gradconform.judge.finding import Finding, Judged, findings_in
from gradconform.process.interrupts import interrupts_seen, pass_on_an_interrupt
from gradconform.requirements.clause import Clause
from gradconform.results import Result

OnResult = Callable[[Result], None]
#: Receives each check as it begins, as a ``not_run`` result.
OnStart = Callable[[Result], None]
#: Runs the checks with these ids.
Work = Callable[[Collection[str], OnResult, OnStart], None]

#: Takes the subject, a runtime's stage objects or its work on schedules, and yields findings.
Judge = Callable[[Any], Judged]
#: Extra checks of one kind, in order.
ExtraChecks = Mapping[Clause, Judge]


def check(name: str, judge: Callable[..., Judged], **given: Any) -> tuple[Clause, Judge]:
    """Return a check: its judge is called with ``given``, which also fills in the judge's docstring."""
    return Clause.of(name, judge, **given), partial(judge, **given)


def named_target(text: str, name: str) -> dict[str, Any]:
    """Return the report's entry on a target that is an adapter of extra checks."""
    return {"text": text, "name": name, "version": None, "file": None, "sha256": None}


def in_this_process(subject: Any, checks: ExtraChecks, *, device: str, dtype: str) -> Work:
    """Return a function that runs those of ``checks`` with the given ids on ``subject``."""

    def work(wanted: Collection[str], on_result: OnResult, on_start: OnStart) -> None:
        for clause, judge in checks.items():
            if clause.id in wanted:
                on_start(clause.result(device, dtype, status="not_run"))
                for result in run_extra(subject, {clause: judge}, dtype=dtype, device=device):
                    on_result(result)

    return work


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
