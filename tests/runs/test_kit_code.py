"""The stored code of the kit: whatever judges is in it, and whatever replaces a part of it is named."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import gradconform
from gradconform.contract import checks_of
from gradconform.drive import driver
from gradconform.fixtures.schedules.from_torch import of_torch
from gradconform.run import run as run_module
from gradconform.run.guard import Guard
from gradconform.run.kit_code import KitCode
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.workers import serving

HOUSE = Path(gradconform.__file__).parents[1]
KIT = tuple(str(HOUSE / folder) for folder in ("conformance", "fixtures", "reference"))

#: Functions of every part that a result passes on its way to the reader.
PATCHED = (
    "contract.space.checks:_trials", "coverage:coverage_of", "coverage:impossible_shares", "drive.driver:drive",
    "drive.observation:Raised.of", "drive.process_state:settings", "drive.reference64:References.of",
    "drive.watches:copy_of", "files.records:finished", "judge.finding:findings_in", "judge.gradients:gradients",
    "judge.state:_left", "judge.values:compare", "process.pipes:Sender.send", "process.serving:leave",
    "reference.autograd:run_backward", "requirements.clause:Clause.result", "results:Report.summary",
    "results:Report.verdict", "results:Result.__post_init__", "results:Result.to_dict", "run.canaries:disbelief",
    "run.guard:Guard.look", "run.judging:judged", "run.runner:Runner.values", "run.run:Run.run_item",
    "tolerance:Judgement.passed", "tolerance:judge", "trees:equal", "trial.materials:Materials.args",
    "waivers.waiver:Waivers.apply", "workers.serving:_send_result",
)  # fmt: skip


@pytest.mark.parametrize("name", PATCHED)
def test_a_replaced_function_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    module, _, path = name.partition(":")
    owner: Any = importlib.import_module(f"gradconform.{module}")
    *classes, last = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    found = KitCode()
    monkeypatch.setattr(owner, last, lambda *_, **__: None)
    assert found.changed() == f"gradconform.{module}.{path}"


def test_a_guard_finds_what_replaces_its_own_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    watching = Guard()
    monkeypatch.setattr(KitCode, "changed", lambda _: None)
    assert watching.look() == "gradconform.run.kit_code.KitCode.changed changed when the target was imported"


def test_changed_code_defaults_constants_and_tables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(*_: object, **__: object) -> None: ...

    found = KitCode()
    for owner, name, value, place in (
        (driver._Run.observe, "__code__", other.__code__, "gradconform.drive.driver._Run.observe"),
        (driver.drive, "__kwdefaults__", {**driver.drive.__kwdefaults__, "loss_scale": 2.0}, "drive.driver.drive"),
        (driver, "COUNTED", (1, 2), "gradconform.drive.driver.COUNTED"),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            assert str(found.changed()).endswith(place)
    monkeypatch.setitem(driver._SESSION_ACTS, "B", other)
    assert found.changed() == "gradconform.drive.driver._SESSION_ACTS['B']"


def test_a_repeated_import_of_a_module_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    found = KitCode()
    monkeypatch.delitem(sys.modules, "gradconform.run.samples")
    monkeypatch.setattr("gradconform.run.samples", importlib.import_module("gradconform.run.samples"))
    assert found.changed() is None
    monkeypatch.setattr("gradconform.run.runner.samples", importlib.import_module("gradconform.run.samples"))
    assert found.changed() == "gradconform.run.runner.samples"


def test_a_replaced_judge_of_a_check_is_named() -> None:
    check = dataclasses.replace(next(iter(checks_of().values())))
    found = KitCode([check])
    object.__setattr__(check, "judge", lambda _: iter(()))
    assert found.changed() == f"the check {check.id}"


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code object, and those of functions and comprehensions in it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


class _Stored(KitCode):
    """Stores the code as a guard does, and shows all of it."""

    @property
    def codes(self) -> set[CodeType]:
        return {inner for function in self._functions for inner in _codes(function[0].__code__)}


def _called(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[set[CodeType], set[CodeType]]:
    """Return the code of the kit that a run calls from its guard's creation on, and what the guard has stored.

    Lambdas do not count: a table or an argument holds them, and those are compared.
    """
    called: set[CodeType] = set()
    stored: list[_Stored] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(KIT) and not frame.f_code.co_name.startswith("<"):
            called.add(frame.f_code)

    class Watching(Guard):
        def __init__(self, checks: Any) -> None:
            super().__init__(checks)
            stored.append(_Stored())
            sys.setprofile(note)

    monkeypatch.setattr(run_module, "Guard", Watching)
    try:
        report = Run(RunOptions.of(**options)).run(lambda result: serving._send_result(result, lambda _: None))
        assert report.verdict != "conforms"
        report.to_json()
    finally:
        sys.setprofile(None)
    return called, stored[0].codes


class _Doubled:
    """Doubles input gradients, so that a run also explains failures."""

    @staticmethod
    def stage_backward(stage_output: Any, output_grads: Any, input_values: Any) -> tuple[Any, ...]:
        from gradconform.reference.split import stage_backward  # noqa: PLC0415 (the code under test)

        grads = stage_backward(stage_output, output_grads, input_values)
        return tuple(None if grad is None else grad * 2 for grad in grads)


@pytest.mark.parametrize(
    "options",
    [
        {"checks": ["*.mlp*", "state.*", "space.full.all-fixed-1", "full.bias.*", "lifetime.*", "hooks.*"]},
        {"operation": ["mul"], "oracle": "all"},
        {"fault": ["overwrite"]},
        {"schedule": of_torch("1F1B", ranks=2, microbatches=3)},
        {"stage": ["gradconform.fixtures.stages.layers:mlp"]},
    ],
    ids=["contract", "oracles", "faults", "schedule", "stage"],
)
def test_every_function_that_a_run_calls_is_stored(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    called, stored = _called({"target": _Doubled(), **options}, monkeypatch)
    missing = {f"{code.co_filename}:{code.co_firstlineno} {code.co_name}" for code in called - stored}
    assert len(called) > 100
    assert not missing
