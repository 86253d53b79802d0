"""Tests that take long are left out and counted, unless they are named."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.left_out import LeftOut
from tests.slow_days import SECONDS, days_of
from tests.together import scope_of

TESTS = Path(__file__).parents[1]
CONFTEST = TESTS / "conftest.py"

#: A session that leaves out one test of four, by a reason, and a second one by -k.
LEAVES_OUT = """
import pytest
from .left_out import LeftOut

def pytest_configure(config):
    config.pluginmanager.register(LeftOut(config), "left-out")

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    left_out = config.pluginmanager.get_plugin("left-out")
    left_out.remove(items, lambda item: "slow, such a command runs them" if "0" in item.name else None)
"""


class Marked:
    """A test with marks."""

    def __init__(self, *names: str, name: str = "test_it") -> None:
        self.path = Path("test_of_it.py")
        self.nodeid = f"tests/test_of_it.py::{name}"
        self.marks = {name: getattr(pytest.mark, name) for name in names}

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.marks[mark.name] = mark


class Session:
    """The configuration of a session of pytest, and what it leaves out."""

    def __init__(self, *arguments: str, expression: str, slow_days: int | None = None) -> None:
        self.args = arguments
        self.option = SimpleNamespace(markexpr=expression, slow_days=slow_days)
        self.hook = SimpleNamespace(pytest_deselected=self.deselected)
        self.pluginmanager = SimpleNamespace(get_plugin=lambda _: self.left_out)
        self.left_out = LeftOut(self)  # type: ignore[arg-type] # it stands for a Config
        self.removed: list[Marked] = []

    def deselected(self, items: list[Marked]) -> None:
        self.removed += items

    @property
    def summary(self) -> list[str]:
        """The lines that the session's summary has on long tests."""
        lines: list[str] = []
        terminal: Any = SimpleNamespace(section=lines.append, line=lines.append)
        self.left_out.pytest_terminal_summary(terminal)
        return lines


@pytest.mark.parametrize(
    ("expression", "arguments", "left_out"),
    [
        ("", ["tests"], {"slow": 1, "nightly": 2}),
        ("slow", ["tests"], {"nightly": 2}),
        ("nightly", ["tests"], {"slow": 1}),
        ("not nightly and (slow or not slow)", ["tests"], {}),  # -m itself leaves the nightly ones out
        ("", ["tests/test_of_it.py::test_it"], {"nightly": 1}),
        ("", ["tests/test_of_it.py::test_it[1]"], {"slow": 1, "nightly": 2}),
        ("", ["tests/test_of_it.py::test_other[1]", "tests"], {"slow": 1, "nightly": 1}),
        ("", ["tests/test_of_another.py::test_it"], {"slow": 1, "nightly": 2}),
    ],
)
def test_slow_tests_run_only_if_they_are_named(
    expression: str, arguments: list[str], left_out: dict[str, int], request: pytest.FixtureRequest
) -> None:
    conftest: Any = request.config.pluginmanager.get_plugin(str(CONFTEST))
    items = [Marked(), Marked("slow"), Marked("nightly"), Marked("slow", "nightly", name="test_other[1]")]
    session, all_items = Session(*arguments, expression=expression), items.copy()
    conftest.pytest_collection_modifyitems(session, items)
    assert sorted(map(id, items + session.removed)) == sorted(map(id, all_items))
    assert len(session.removed) == sum(left_out.values())
    counted = [line.split() for line in session.summary[1:]]
    assert {words[3].rstrip(","): int(words[0]) for words in counted} == left_out
    assert all("python -m pytest" in line and line.endswith(" runs them") for line in session.summary[1:])


@pytest.mark.parametrize("processes", ["0", pytest.param("2", marks=pytest.mark.slow)])
def test_the_summary_counts_what_is_left_out_also_by_workers(processes: str, tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    shutil.copy(TESTS / "left_out.py", tmp_path / "tests")
    code = "import pytest\n\n@pytest.mark.parametrize('number', range(4))\ndef test_one(number):\n    pass\n"
    for name, text in {"__init__": "", "conftest": LEAVES_OUT, "test_it": code}.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-n", processes, "-k", "not 1", "-p", "no:gradconform"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 left out: slow, such a command runs them" in done.stdout, done.stdout + done.stderr
    assert "2 passed, 2 deselected" in done.stdout


def test_each_slow_test_runs_on_one_of_the_days(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    conftest: Any = request.config.pluginmanager.get_plugin(str(CONFTEST))
    run: list[str] = []
    for day in 1, 2, 3:
        monkeypatch.setenv("GRADCONFORM_SLOW_PART", f"{day}/3")
        items = [Marked("slow", name=f"test_{number}") for number in range(7)]
        session = Session("tests", expression="slow", slow_days=3)
        conftest.pytest_collection_modifyitems(session, items)
        assert session.summary[1].startswith(f"{len(session.removed)} left out: slow, not of part {day}/3 ")
        run += [item.nodeid for item in items]
    assert len(run) == len(set(run)) == 7


def test_each_day_has_slow_tests_of_about_the_same_time() -> None:
    seconds = {f"tests/test_of_it.py::test_{number}": 10.0 * number for number in range(1, 10)}
    others = [f"tests/test_of_it.py::test_other[{number}]" for number in range(60)]  # without recorded seconds
    day_of = days_of([*seconds, *others], 3, seconds)
    assert {day_of[name] for name in list(seconds)[-3:]} == {1, 2, 3}
    lengths = Counter[int]()
    for name, day in day_of.items():
        lengths[day] += int(seconds.get(name, 2.0))
    assert max(lengths.values()) - min(lengths.values()) <= 2
    assert day_of == days_of([*reversed(others), *seconds], 3, seconds)


def test_tests_that_share_work_are_of_one_day() -> None:
    of_faults = [
        f"tests/quality/{test}[{fault}]"
        for fault in ("doubled", "overwrite", "biases")
        for test in (
            "test_causes.py::test_the_message_on_a_fault_names_its_cause",
            "test_faults.py::test_every_check_that_a_fault_names_finds_it",
        )
    ]
    assert days_of(of_faults, 2, {"fault [doubled]": 9.0}) == {
        "fault [doubled]": 1,
        "fault [biases]": 2,
        "fault [overwrite]": 2,
    }


def test_every_listed_slow_test_exists(request: pytest.FixtureRequest) -> None:
    long_tests: dict[str, list[str]] = request.config.pluginmanager.get_plugin(str(CONFTEST)).LONG_TESTS
    assert set(long_tests) == {"slow", "nightly"}
    named = [name for names in long_tests.values() for name in names]
    assert len(named) == len(set(named))
    recorded = (scope.removeprefix("tests/") for scope in SECONDS if "/" in scope)
    files = {name.partition("::")[0] for name in (*named, *recorded)}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider"),
            *("-m", "slow or nightly or not slow", *sorted(files)),
        ],
        cwd=TESTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    ids = {line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line}
    assert ids, done.stdout + done.stderr
    assert set(named) - ids - {name.partition("[")[0] for name in ids} == set()
    assert SECONDS.keys() - {scope_of(f"tests/{name}") for name in ids} == set()
