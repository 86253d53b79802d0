"""What fails on torch 2.13.0, in every dtype and profile, is what the scripts of torch_2_13 confirm."""

from __future__ import annotations

import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

from gradconform import contract
from gradconform.results import Report

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Judge = Callable[..., Report]

TABLE = tomllib.loads(Path(__file__).with_name("torch_2_13").joinpath("explained.toml").read_text(encoding="utf-8"))
PATTERNS = [pattern for globs in TABLE["scripts"].values() for pattern in globs]
EXPLAINED = {check for check in contract.checks_of() for pattern in PATTERNS if fnmatchcase(check, pattern)}

on_torch_2_13_0 = pytest.mark.skipif(
    torch.__version__.partition("+")[0] != TABLE["version"],
    reason=f"the scripts tell of torch {TABLE['version']}; this is {torch.__version__}",
)


@on_torch_2_13_0
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_checks_that_fail_on_torch_are_exactly_those_that_a_script_explains(dtype: str, judge: Judge) -> None:
    report = judge("torch", dtype=dtype)
    failed = {result.check for result in report.failures}
    explained = {check for check in EXPLAINED if contract.checks_of()[check].profile != "full"}
    assert sorted(explained - failed) == []
    assert sorted(failed - explained) == []
    assert [result.check for result in report.results if result.status == "error"] == []


@on_torch_2_13_0
def test_what_profile_full_probes_beyond_the_claims_accuses_of_nothing_more(judge: Judge) -> None:
    report = judge("torch", profile="full")
    assert {result.check for result in report.failures} - EXPLAINED == set()
