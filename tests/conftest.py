"""Fixtures and hooks of all tests: pytest's fixture for testing plugins, and the schema that every report must meet."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator

from gradconform.contract import areas, checks_of, frozen
from gradconform.contract.check import Check
from gradconform.contract.freezing import freeze
from gradconform.process import worker
from gradconform.process.imports import imports_shared, imports_uncollected, objects_frozen
from gradconform.reading.report import schema
from gradconform.results import Report
from gradconform.torch_releases.precision import PRECISIONS, precision
from gradconform.version import CONTRACT_VERSION, FIRST_VERSION

from . import stuck
from .daily_part import part_of_today
from .left_out import LeftOut
from .long_tests import LONG_TESTS, mark_long_tests
from .slow_days import SECONDS, days_of
from .together import Together, scope_of

pytest_plugins = ["pytester"]

# What an inner pytest imports it also forgets, and torch and the registry of checks can't be imported twice.
with imports_uncollected():
    for name in (
        "judge.matching", "drive.user_stage", "run.run", "plugins.pytest.contract_run", "plugins.pytest.fixture_values",
        "plugins.pytest.items", "reference.split",
        "reference.autograd", "plugins.adapters.torch_functions", "contract.areas",
    ):  # fmt: skip
        importlib.import_module(f"gradconform.{name}")

# No test fails on a machine that is slow.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

#: The marks of tests that are left out unless -m names them, the longest first, and the command that runs each.
_COMMANDS = {
    "nightly": "python -m pytest -m nightly -o faulthandler_timeout=7200",
    "slow": "python -m pytest -n 2 -m slow",
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Watch each test: a stuck one ends, and a slow one continues, which a time limit cannot distinguish."""
    with stuck.watched():
        return (yield)


#: What lasts as long as this process.
_WHOLE_SESSION = contextlib.ExitStack()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude modules and collected tests from garbage collection: they live as long as this process."""
    with imports_uncollected():
        collected = yield
    _WHOLE_SESSION.enter_context(objects_frozen())
    return collected


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Run the tests of a file with shared fixtures in one worker, and distribute all others one by one."""
    return Together(config, log, SECONDS)


@pytest.fixture
def hour_passes_when_there_is(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Simulate an hour's wait for a worker if a file exists, and wait normally before that."""

    def simulate(file: Path) -> None:
        clock = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * file.exists(), sleep=time.sleep)
        monkeypatch.setattr(worker, "time", clock)

    return simulate


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with which CI runs a part of the slow tests."""
    parser.addoption(
        "--slow-days", type=int, metavar="N", help="run today's part of the slow tests; in N days all of them run"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let the summary say how many long tests are left out."""
    config.pluginmanager.register(LeftOut(config), "left-out")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow and nightly tests, unless -m or their id selects them."""
    mark_long_tests(LONG_TESTS, items)
    reasons, slow = dict[pytest.Item, str](), list[pytest.Item]()
    for item in items:
        mark = next((name for name in _COMMANDS if item.get_closest_marker(name)), None)
        if mark is None or _is_named(item, config.args):
            continue
        if mark not in config.option.markexpr:
            reasons[item] = f"{mark}, {_COMMANDS[mark]} runs them"
        elif mark == "slow":
            slow.append(item)
    if config.option.slow_days:
        reasons |= _of_other_days(slow, config.option.slow_days)
    left_out: Any = config.pluginmanager.get_plugin("left-out")
    left_out.remove(items, reasons.get)


def _of_other_days(slow: list[pytest.Item], days: int) -> dict[pytest.Item, str]:
    """Return the slow tests that are not of today; those that share work are of one day."""
    part = part_of_today(days, "GRADCONFORM_SLOW_PART")
    day_of = days_of((item.nodeid for item in slow), part.count, SECONDS)
    reason = f"slow, not of part {part} (GRADCONFORM_SLOW_PART), {_COMMANDS['slow']} runs them"
    return {item: reason for item in slow if day_of[scope_of(item.nodeid)] != part.index}


def _is_named(item: pytest.Item, arguments: Iterable[str]) -> bool:
    """Return whether an argument of pytest is the test's id, with or without its parameters."""
    own = item.nodeid.partition("::")[2]
    ids = [argument.partition("::") for argument in arguments]
    return any(
        name in {own, own.partition("[")[0]} and Path(file).name == item.path.name for file, _, name in ids if name
    )


@pytest.fixture(scope="session", autouse=True)
def _caches_of_the_tests(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[None]:
    """Use the tests' own cache folder instead of the user's; build simx once for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))
        patch.setenv("GRADCONFORM_WAIT_SECONDS", "3600")  # on a slow machine commands print what they do on others
        if "TORCH_EXTENSIONS_DIR" not in os.environ:
            patch.setenv("TORCH_EXTENSIONS_DIR", str(shared / "extensions"))
        yield


@pytest.fixture(scope="session", autouse=True)
def _imports_of_torch_are_shared() -> Iterator[None]:
    """Let all tests in this process fork the kit's processes from one that has imported torch."""
    with imports_shared():
        yield


@pytest.fixture(scope="session", autouse=True)
def _lines_are_as_wide_everywhere() -> Iterator[None]:
    """Make the output independent of the terminal, if any, in which the tests run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        yield


_VALIDATOR = Draft202012Validator(schema())


@pytest.fixture(scope="session", autouse=True)
def _every_report_meets_the_schema() -> Iterator[None]:
    """Check each report of this process against the published schema.

    The method is replaced once: a run whose process has other code than the last one stores all of it again.
    """
    to_json = Report.to_json

    def held(report: Report) -> str:
        text = to_json(report)
        _VALIDATOR.validate(json.loads(text))
        return text

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Report, "to_json", held)
        yield


@pytest.fixture(autouse=True)
def _no_test_changes_how_float32_is_computed() -> Iterator[None]:
    """Require each test to restore the precisions that it sets: a run that began with others cannot be resumed."""
    before = {path: precision(path) for path in PRECISIONS}
    yield
    assert {path: precision(path) for path in PRECISIONS} == before


#: The checks of the contracts that tests have made, and their files, by the identity of the given checks.
_FROZEN: dict[tuple[int, ...], tuple[list[Check], dict[str, Check], Path]] = {}


@pytest.fixture
def contract_of(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Iterable[Check]], None]]:
    """Replace the contract by one of some checks, with a file for each version that introduced one.

    Checks of the first version are those of the newest one here.
    """

    def make(checks: Iterable[Check]) -> None:
        given = list(checks)
        key = tuple(map(id, given))
        if known := _FROZEN.get(key):
            _, newest, files = known
        else:
            changed = [replace(one, since=CONTRACT_VERSION) if one.since == FIRST_VERSION else one for one in given]
            newest, files = {check.id: check for check in changed}, tmp_path_factory.mktemp("frozen")
            _freeze(newest, files, monkeypatch)
            _FROZEN[key] = given, newest, files
        monkeypatch.setattr(areas, "CHECKS", newest.copy())
        monkeypatch.setattr(frozen, "VERSIONS", tmp_path_factory.mktemp("versions"))
        shutil.copytree(files, frozen.VERSIONS, dirs_exist_ok=True)
        checks_of.cache_clear()

    yield make
    checks_of.cache_clear()


def _freeze(checks: dict[str, Check], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the files of a contract of these checks."""
    with monkeypatch.context() as patch:
        patch.setattr(areas, "CHECKS", checks)
        patch.setattr(frozen, "VERSIONS", folder)
        checks_of.cache_clear()
        for version in {check.since for check in checks.values()}:
            frozen.file_of(version).write_text(frozen.FrozenContract(version, None, {}, {}).text(), encoding="utf-8")
            freeze(version)
