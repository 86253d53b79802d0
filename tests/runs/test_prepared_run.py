"""Runs of sources with a command of their own, before a check is judged."""

from __future__ import annotations

from gradconform.requirements.clause import Clause
from gradconform.results import Report
from gradconform.run.prepared_run import Planned, PreparedRun
from gradconform.sources.schedule_text import SOURCE


def judges_nothing(target: object) -> None:
    """Nothing is judged."""


def test_a_source_without_lines_on_what_it_judges_gives_no_verdict_on_the_contract() -> None:
    clause = Clause.of("checks.nothing", judges_nothing)
    planned = Planned(clauses=(clause,), target={"name": "mine"}, lines=(), device="cpu", dtype="float32")
    prepared = PreparedRun(SOURCE.values(target="mine"), planned, lambda *_: None)
    report = Report(**prepared.header.report, results=[clause.result("cpu", "float32", duration_s=0.0)])
    assert report.verdict == "passed"
