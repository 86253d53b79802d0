"""What fails on torch's functions, in every dtype and profile, is what the scripts of its release confirm."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch

from gradconform import contract
from gradconform.results import Report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Judge = Callable[..., Report]

TABLES: dict[str, dict[str, Any]] = {
    path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
    for path in Path(__file__).parent.glob("*/explained.toml")
}
BY_RELEASE = {table["version"]: name for name, table in TABLES.items() if table["target"] == "torch"}
RELEASE = torch.__version__.partition("+")[0]

of_this_release = pytest.mark.skipif(
    RELEASE not in BY_RELEASE,
    reason=f"scripts tell of torch {' and '.join(sorted(BY_RELEASE))}; this is {torch.__version__}",
)


def ids_matching(globs: Iterable[str]) -> set[str]:
    return {check for check in contract.checks_of() for pattern in globs if fnmatchcase(check, pattern)}


def explained(name: str) -> set[str]:
    """Return the checks that a release's scripts explain, and those of an older one that are not spared."""
    table = TABLES[name]
    own = ids_matching([glob for globs in table["scripts"].values() for glob in globs])
    return own | (explained(table["inherits"]) - ids_matching(table["spared"])) if "inherits" in table else own


@of_this_release
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_scripts_explain_exactly_the_checks_that_fail_on_torch(dtype: str, judge: Judge) -> None:
    report = judge("torch", dtype=dtype)
    failed = {result.check for result in report.failures}
    known = {check for check in explained(BY_RELEASE[RELEASE]) if contract.checks_of()[check].profile != "full"}
    assert sorted(known - failed) == []
    assert sorted(failed - known) == []
    assert [result.check for result in report.results if result.status == "error"] == []


@of_this_release
def test_scripts_explain_exactly_the_checks_of_profile_quick_that_fail_on_torch(judge: Judge) -> None:
    report = judge("torch", profile="quick")
    known = {check for check in explained(BY_RELEASE[RELEASE]) if contract.checks_of()[check].profile == "quick"}
    assert known
    assert {result.check for result in report.failures} == known
    assert [result.check for result in report.results if result.status == "error"] == []


@of_this_release
def test_scripts_also_explain_the_failures_of_profile_full(judge: Judge) -> None:
    report = judge("torch", profile="full")
    assert {result.check for result in report.failures} - explained(BY_RELEASE[RELEASE]) == set()
