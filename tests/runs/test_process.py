"""A process of the kit: it answers, and whatever it does, its end is told, with stacks where it hangs."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gradconform.exits import RunRefusedError
from gradconform.process.imports import imports_uncollected
from gradconform.process.worker import Exit, Worker

WORK = """
import os, signal, sys, time

def echo(orders, tell):
    for order in orders:
        tell(order)

def leaves(orders, tell):
    print("last words", file=sys.stderr)
    os._exit(3)

def aborts(orders, tell):
    os.abort()

def sleeps(orders, tell):
    time.sleep(600)

def is_stopped(orders, tell):
    os.kill(os.getpid(), signal.SIGSTOP)

def refuses(orders, tell):
    error = ValueError("not with me")
    error.exit_code = 2
    raise error
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Worker]:
    """Start a process on one of the works above; it may take a second where it has a limit."""
    (tmp_path / "odd_work.py").write_text(WORK, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)

    def begin(work: str, limit: float | None = None) -> Worker:
        worker = Worker(f"odd_work:{work}", {"first": 1}, quiet=True)
        worker.expect(limit)
        return worker

    return begin


def end_of(worker: Worker) -> Any:
    with closing(worker):
        *_, end = worker.messages()
    return end


def test_messages_of_any_size_are_answered_and_close_ends_the_process(start: Callable[..., Worker]) -> None:
    with closing(start("echo")) as worker:
        long = {"text": "x" * 1_000_000}
        worker.send(long)
        told = worker.messages()
        assert [next(told), next(told)] == [{"first": 1}, long]
    assert list(worker.listen()) == [Exit(code=-signal.SIGKILL)]


@pytest.mark.parametrize(
    ("work", "code", "words", "last"),
    [("echo", -signal.SIGKILL, "SIGKILL", ""), ("leaves", 3, "exit code 3", "last words"),
     ("aborts", -signal.SIGABRT, "SIGABRT", "")],
)  # fmt: skip
def test_the_end_of_a_process_is_reported(
    start: Callable[..., Worker], work: str, code: int, words: str, last: str
) -> None:
    worker = start(work)
    if work == "echo":
        os.kill(worker.process, signal.SIGKILL)
    end = end_of(worker)
    assert (end.code, end.limit, end.words, end.last_line) == (code, None, words, last)
    assert ("in aborts" in end.stacks) == (work == "aborts")


@pytest.mark.parametrize(("work", "stacks"), [("sleeps", True), ("is_stopped", False)])
def test_a_process_over_its_time_limit_is_ended_and_reports_its_stack_if_possible(
    start: Callable[..., Worker], work: str, *, stacks: bool
) -> None:
    end = end_of(start(work, 5.0))
    assert (end.code, end.limit, f"in {work}" in end.stacks) == (None, 5.0, stacks)


def test_an_error_in_the_work_is_raised_with_its_exit_code(start: Callable[..., Worker]) -> None:
    with pytest.raises(RunRefusedError, match="not with me") as raised:
        end_of(start("refuses"))
    assert raised.value.exit_code == 2


@pytest.mark.parametrize("enabled", [True, False])
def test_imports_are_not_collected_and_leave_the_collector_as_it_was(*, enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with imports_uncollected():
            inside = gc.isenabled()
        after = gc.isenabled()
    finally:
        (gc.enable if before else gc.disable)()
    assert (inside, after) == (False, enabled)


def test_only_the_outermost_context_freezes_objects_and_frees_those_that_nobody_else_has_frozen() -> None:
    code = """
import gc
from gradconform.process.imports import objects_frozen

def frozen():
    return gc.get_freeze_count() > 0

with objects_frozen():
    with objects_frozen():
        assert frozen()
    assert frozen()
assert not frozen()
gc.freeze()
with objects_frozen():
    assert frozen()
assert frozen()
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
