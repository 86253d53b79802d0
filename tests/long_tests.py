"""The long tests, which README's test command skips: `long_tests.toml` names them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read(file: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    return tomllib.loads(file.read_text(encoding="utf-8"))


#: The ids of each mark's tests, without "tests/". An id without parameters means all parameters of the test.
LONG_TESTS: dict[str, list[str]] = read(Path(__file__).with_suffix(".toml"))


def mark_long_tests(names_of: Mapping[str, Iterable[str]], items: Iterable[pytest.Item]) -> None:
    """Add to each test the marks of the lists that name it."""
    marks = {name: mark for mark, names in names_of.items() for name in names}
    for item in items:
        own = item.nodeid.removeprefix("tests/")
        for name in {own, own.partition("[")[0]} & marks.keys():
            item.add_marker(marks[name])
