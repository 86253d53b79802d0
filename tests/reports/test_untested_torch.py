"""A run on a torch that the kit was not tested with says so: in the report, above the verdict, on pages, in doctor."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradconform.report.health import Health, health_lines
from gradconform.report.terminal import closing
from gradconform.results import Report
from gradconform.torch_releases.tested import TESTED, untested

NEWER = "torch 2.99.0 is too new: gradconform was tested on torch 2.6 to 2.15"


@pytest.mark.parametrize("release", [*(f"{minor}.0" for minor in TESTED), "2.13.7", "2.13.0+cu130"])
def test_a_tested_release_gets_no_notice(release: str) -> None:
    assert untested(release) == ""


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("2.99.0", NEWER),
        ("2.5.1", "torch 2.5.1 is too old: gradconform was tested on torch 2.6 to 2.15"),
        ("2.13.0a0+git1234", "torch 2.13.0a0+git1234 is not a release: gradconform was tested on torch 2.6 to 2.15"),
        (
            "2.99.0.dev20261122",
            "torch 2.99.0.dev20261122 is not a release: gradconform was tested on torch 2.6 to 2.15",
        ),
    ],
)
def test_an_untested_release_gets_a_notice_with_the_tested_ones(version: str, said: str) -> None:
    assert untested(version) == said


def test_a_report_on_an_untested_torch_has_the_notice_above_the_verdict(real: Report) -> None:
    there = replace(real, environment={**real.environment, "torch": "2.99.0", "torch_tested": False})
    *lines, verdict = [line.text for line in closing(there, 200)]
    assert NEWER in lines
    assert NEWER not in verdict
    assert NEWER not in [line.text for line in closing(real, 200)]


def test_doctor_shows_the_notice_below_the_versions() -> None:
    versions = {"gradconform": "1", "contract": "1.0", "python": "3", "platform": "p", "torch": "2.99.0"}
    assert NEWER in [line.text for line in health_lines(Health(versions=versions, devices=(), targets=()), 200)]
