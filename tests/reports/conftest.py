"""Reports for the tests: of one real run, and made by hand around it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import gradconform
from gradconform.results import Report

#: Some of these fail on torch 2.13.0, a SHOULD among them.
CHECKS = ("full.gradients.*", "split.gradients.*", "hooks.*")


@pytest.fixture(scope="session")
def _real() -> Report:
    return gradconform.check_stage_backward("torch", profile="quick", checks=CHECKS)


@pytest.fixture
def real(_real: Report) -> Report:
    """The report of a run of some checks on torch; each test may change its own."""
    return replace(_real, results=list(_real.results))


@pytest.fixture
def values(real: Report) -> dict[str, Any]:
    """The JSON values of the real report."""
    return real.to_dict()
