"""Tests that take long are skipped and told, unless they are asked for."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.slow_days import SECONDS, days_of
from tests.together import scope_of

TESTS = Path(__file__).parents[1]
CONFTEST = TESTS / "conftest.py"


class Marked:
    """A test with marks."""

    def __init__(self, *names: str, name: str = "test_it") -> None:
        self.path = Path("test_of_it.py")
        self.nodeid = f"tests/test_of_it.py::{name}"
        self.marks = {name: getattr(pytest.mark, name) for name in names}
        self.skipped: list[str] = []

    def get_closest_marker(self, name: str) -> Any:
        return self.marks.get(name)

    def add_marker(self, mark: pytest.MarkDecorator) -> None:
        self.skipped.append(mark.kwargs["reason"])


@pytest.mark.parametrize(
    ("expression", "arguments", "skipped"),
    [
        ("", ["tests"], ["slow", "nightly", "nightly"]),
        ("slow", ["tests"], ["nightly", "nightly"]),
        ("nightly", ["tests"], ["slow"]),
        ("not nightly and (slow or not slow)", ["tests"], []),  # -m itself leaves the nightly ones out
        ("", ["tests/test_of_it.py::test_it"], ["nightly"]),
        ("", ["tests/test_of_it.py::test_it[1]"], ["slow", "nightly", "nightly"]),
        ("", ["tests/test_of_it.py::test_other[1]", "tests"], ["slow", "nightly"]),
        ("", ["tests/test_of_another.py::test_it"], ["slow", "nightly", "nightly"]),
    ],
)
def test_slow_tests_run_only_if_they_are_named(
    expression: str, arguments: list[str], skipped: list[str], request: pytest.FixtureRequest
) -> None:
    conftest: Any = request.config.pluginmanager.get_plugin(str(CONFTEST))
    items = [Marked(), Marked("slow"), Marked("nightly"), Marked("slow", "nightly", name="test_other[1]")]
    config = SimpleNamespace(args=arguments, option=SimpleNamespace(markexpr=expression, slow_days=None))
    conftest.pytest_collection_modifyitems(config, items)
    reasons = [reason for item in items for reason in item.skipped]
    assert [reason.partition(":")[0] for reason in reasons] == skipped
    assert all("python -m pytest" in reason and reason.endswith(" runs it") for reason in reasons)


def test_each_slow_test_runs_on_one_of_the_days(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    conftest: Any = request.config.pluginmanager.get_plugin(str(CONFTEST))
    config = SimpleNamespace(args=["tests"], option=SimpleNamespace(markexpr="slow", slow_days=3))
    run: list[str] = []
    for day in 1, 2, 3:
        monkeypatch.setenv("GRADCONFORM_SLOW_PART", f"{day}/3")
        items = [Marked("slow", name=f"test_{number}") for number in range(7)]
        conftest.pytest_collection_modifyitems(config, items)
        assert all("slow, not of part" in reason for item in items for reason in item.skipped)
        run += [item.nodeid for item in items if not item.skipped]
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
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *sorted(files)],
        cwd=TESTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    ids = {line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line}
    assert ids, done.stdout + done.stderr
    assert set(named) - ids - {name.partition("[")[0] for name in ids} == set()
    assert SECONDS.keys() - {scope_of(f"tests/{name}") for name in ids} == set()
