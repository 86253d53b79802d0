"""The distribution of tests to workers survives the crash of one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.together import Together, scope_of

TOGETHER = Path(__file__).parents[1] / "together.py"

CONFTEST = """
import pytest
from .together import Together

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return Together(config, log)
"""

#: The pipe to the worker is closed before xdist reads the results of the test before the one that crashes. The worker
#: has one more test then: it begins none before it knows the next.
CLOSED = """
from xdist.workermanage import WorkerController

send, left = WorkerController.send_runtest_some, {{}}

def send_or_raise(self, indices):
    if left.get(self) == 0:
        raise OSError("cannot send (already closed?)")
    send(self, indices)
    if self in left:
        left[self] -= 1
    if {crashes} in indices:
        left[self] = 1

WorkerController.send_runtest_some = send_or_raise
"""

TESTS = """
import os, pytest

@pytest.mark.parametrize("number", range(12))
def test_one(number):
    if number == {crashes}:
        os._exit(3)
"""


def test_the_tests_of_one_fault_run_in_one_worker() -> None:
    causes = "tests/quality/test_causes.py::test_the_message_on_a_fault_names_its_cause"
    named = "tests/quality/test_faults.py::test_every_check_that_a_fault_names_finds_it"
    in_bfloat16 = f"{named}_in_bfloat16"
    assert scope_of(f"{causes}[doubled]") == scope_of(f"{named}[doubled]") != scope_of(f"{named}[overwrite]")
    assert scope_of(in_bfloat16) == in_bfloat16
    assert scope_of("tests/cli/test_run.py::test_one[doubled]") == "tests/cli/test_run.py::test_one[doubled]"


def test_tests_that_share_what_takes_seconds_run_in_one_worker() -> None:
    found = "tests/fuzzed_files/test_found.py"
    assert scope_of(f"{found}::test_one") == scope_of(f"{found}::test_other[1]") == found
    conform = "tests/quality/test_references.py::test_known_right_targets_conform"
    explain = "tests/quality/test_torch_functions.py::test_scripts_explain_exactly_the_checks_that_fail_on_torch"
    assert scope_of(f"{conform}[reference-split-float32]") == scope_of(f"{explain}[float32]")
    assert scope_of(f"{conform}[autograd-float32]") != scope_of(f"{explain}[float64]")


class Worker:
    """A worker that stores the indices of the tests that it gets."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw0")

    def __init__(self) -> None:
        self.tests: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.tests += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_the_longest_tests_are_next_after_the_first_of_each_worker() -> None:
    option = SimpleNamespace(loadscopereorder=True)
    config: Any = SimpleNamespace(option=option, getvalue=lambda _: ["2*popen"], getoption=lambda *_: None)
    names = [f"tests/test_of_it.py::test_{number}" for number in range(12)]
    together = Together(config, None, {names[11]: 5.0, names[7]: 60.0, names[9]: 20.0, "tests/test_gone.py": 90.0})
    workers: list[Any] = [Worker(), Worker()]
    for worker in workers:
        together.add_node(worker)
        together.add_node_collection(worker, names)
    together.schedule()
    together.mark_test_complete(workers[0], 0)
    together.mark_test_complete(workers[0], 2)
    assert (workers[0].tests, workers[1].tests) == ([0, 2, 7, 11, 4], [1, 3, 9])


@pytest.mark.slow
@pytest.mark.parametrize(("crashes", "more"), [(0, ""), (5, ""), (11, ""), (5, CLOSED)], ids=["0", "5", "11", "closed"])
def test_a_crashed_worker_loses_only_its_own_test_and_the_session_ends(crashes: int, more: str, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    shutil.copy(TOGETHER, tmp_path / "tests")
    conftest = CONFTEST + more.format(crashes=crashes)
    for name, code in {"__init__": "", "conftest": conftest, "test_it": TESTS.format(crashes=crashes)}.items():
        (tmp_path / "tests" / f"{name}.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "-p", "no:gradconform"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 11 passed" in done.stdout
    assert f"crashed while running 'tests/test_it.py::test_one[{crashes}]'" in done.stdout
