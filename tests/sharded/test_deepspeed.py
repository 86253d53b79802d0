"""Sharded stages of DeepSpeed: what the kit finds on them, and the scripts that confirm each finding.

A folder beside this file holds the scripts, which know DeepSpeed alone. Each shows what fails here.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import gradconform

from .scripts import assert_shows_its_defect, scripts_of, skip_unless_installed

VERSION = "0.19.8"

#: The checks of profile quick, and the rows that fail, each with the kinds of its checks and of its causes.
QUICK: dict[str, tuple[int, dict[str, tuple[set[str], set[str]]]]] = {
    "Experts": (
        42,  # expert_norm.py; the experts of mixed-2 are frozen
        {
            row: ({"norm", "steps"}, {"norm_mean_of_ranks"})
            for row in ("plain", "chosen-2", "chosen-3", "mixed-1", "mixed-3")
        },
    ),
    "SequenceAttention": (
        48,
        {"groups-mesh": ({"gradients", "copies", "steps"}, {"not_summed_over"})},  # mesh_gradients.py
    ),
}


@pytest.fixture(autouse=True)
def _installed() -> None:
    skip_unless_installed("deepspeed", VERSION, f"deepspeed=={VERSION}")


@pytest.mark.nightly
@pytest.mark.parametrize("script", scripts_of("deepspeed"), ids=lambda script: script.stem)
def test_a_script_shows_its_defect(script: Path) -> None:
    assert_shows_its_defect(script)


@pytest.mark.slow
@pytest.mark.parametrize("stage", QUICK)
def test_a_run_reports_exactly_what_the_scripts_confirm(stage: str) -> None:
    report = gradconform.check_sharded_stage(f"gradconform.plugins.sharded.deepspeed_layers:{stage}")
    checks, failing = QUICK[stage]
    found: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for result in report:
        if result.status != "passed":
            _, kind, row = result.check.split(".", 2)
            found[row][0].add(kind)
            found[row][1].update(finding["cause"] and finding["cause"]["kind"] for finding in result.findings)
    assert found == failing
    assert len(list(report)) == checks
