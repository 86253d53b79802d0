"""Clauses: read from a docstring, registered by a decorator, and told as a result in one way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gradconform.contract.check import Check
from gradconform.judge.finding import Finding
from gradconform.pipeline.extra_checks import Judge, check, run_extra
from gradconform.requirements.clause import Clause, register


def holds(subject: Any, *, what: str = "it") -> Iterator[Finding]:
    """What is judged SHOULD
    hold {what}.

    Else it falls.
    """
    if subject != what:
        yield Finding("mismatch", "the hand", "F0", f"holds {subject}")


def test_a_docstring_gives_requirement_level_and_reason() -> None:
    found = Clause.of("area.topic.case", holds, what="on")
    assert found == Clause(
        id="area.topic.case", level="SHOULD", requirement="What is judged SHOULD hold on.", why="Else it falls."
    )


def test_without_findings_a_result_passes_with_an_empty_message() -> None:
    result = Clause.of("a.b", holds, what="on").result("cpu", "float32", duration_s=1.5)
    assert (result.status, result.kind, result.message, result.findings) == ("passed", None, "", ())
    assert (result.check, result.level, result.device, result.dtype) == ("a.b", "SHOULD", "cpu", "float32")
    assert (result.duration_s, result.programs) == (1.5, ())


def test_findings_are_reported_as_lines_and_as_values() -> None:
    finding = Finding("mismatch", "the hand", "F0", "holds nothing")
    result = Clause.of("a.b", holds, what="on").result("cpu", "float32", [finding, finding])
    assert (result.status, result.kind) == ("failed", "mismatch")
    assert result.message == "the hand, after F0: holds nothing\nthe hand, after F0: holds nothing"
    assert result.findings == (finding.to_dict(), finding.to_dict())


def test_a_check_of_the_contract_names_its_programs_first(a_check: Check) -> None:
    finding = Finding("mismatch", "input 0", "B0", "is wrong")
    result = a_check.result("cpu", "float32", [finding])
    assert result.message == f"program {a_check.programs[0]}\ninput 0, after B0: is wrong"
    assert result.programs == a_check.programs


@pytest.fixture
def a_check() -> Check:
    from gradconform.contract import checks_of  # noqa: PLC0415 (it takes a second)

    return next(one for one in checks_of().values() if len(one.programs) == 1)


def test_an_explicit_status_overrides_the_findings() -> None:
    values: dict[str, Any] = {"status": "unsupported", "message": "not claimed"}
    result = Clause.of("a.b", holds, what="on").result("cpu", "float32", **values)
    assert (result.status, result.message) == ("unsupported", "not claimed")


def test_an_extra_check_is_one_function_with_its_requirement() -> None:
    checks: dict[Clause, Judge] = {}

    @register(checks, "extra.one")
    def one(subject: Any) -> Iterator[Finding]:
        """What is judged MUST be 1."""
        if subject != 1:
            yield Finding("mismatch", "the number", "", f"is {subject}")

    checks.update(check(f"extra.{what}", holds, what=what) for what in ("on", "out"))
    results = list(run_extra("out", checks, dtype="text"))
    assert [(found.check, found.level, found.status) for found in results] == [
        ("extra.one", "MUST", "failed"),
        ("extra.on", "SHOULD", "failed"),
        ("extra.out", "SHOULD", "passed"),
    ]
    assert results[0].message == "the number: is out"


def test_an_exception_in_an_extra_check_is_a_finding() -> None:
    def dies(subject: Any) -> Iterator[Finding]:
        """What is judged MUST live."""
        raise RuntimeError(subject)

    (result,) = run_extra("no", {Clause.of("a.b", dies): dies}, dtype="text")
    assert (result.status, result.kind, result.message) == ("failed", "error", "the call: raised RuntimeError: no")
