"""Tests that take long are skipped and told, unless they are asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

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


def test_every_listed_slow_test_exists(request: pytest.FixtureRequest) -> None:
    long_tests: dict[str, list[str]] = request.config.pluginmanager.get_plugin(str(CONFTEST)).LONG_TESTS
    assert set(long_tests) == {"slow", "nightly"}
    named = [name for names in long_tests.values() for name in names]
    assert len(named) == len(set(named))
    files = sorted({name.partition("::")[0] for name in named})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *files],
        cwd=TESTS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    ids = {line.removeprefix("tests/") for line in done.stdout.splitlines() if "::" in line}
    assert ids, done.stdout + done.stderr
    assert set(named) - ids - {name.partition("[")[0] for name in ids} == set()
