"""Sharded stages of transformers: what the kit finds on them, and the scripts that confirm each finding.

A folder beside this file holds the scripts, which know transformers alone. Each shows what fails here.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import gradconform

from .scripts import assert_shows_its_defect, scripts_of

VERSION = "5.24.0"
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install accelerate")
transformers = pytest.importorskip("transformers", minversion=VERSION, reason=f"pip install transformers=={VERSION}")

#: The checks of profile quick, and the rows that fail in some: those with several micro-batches and trained head norms.
CHECKS = 48
FAILING: dict[str, dict[str, set[str]]] = {
    "Llama": {},
    "Qwen3MoE": {row: {"gradients", "norm", "steps"} for row in ("mixed-1", "mixed-3")},  # accumulated_norms.py
}


@pytest.mark.nightly
@pytest.mark.parametrize("script", scripts_of("transformers"), ids=lambda script: script.stem)
def test_a_script_shows_its_defect(script: Path) -> None:
    assert_shows_its_defect(script)


@pytest.mark.slow
@pytest.mark.parametrize("stage", FAILING)
def test_a_run_reports_exactly_what_the_scripts_confirm(stage: str) -> None:
    report = gradconform.check_sharded_stage(f"gradconform.plugins.sharded.transformers_models:{stage}")
    found: dict[str, set[str]] = {}
    for result in report:
        if result.status != "passed":
            _, kind, row = result.check.split(".", 2)
            found.setdefault(row, set()).add(kind)
    assert found == FAILING[stage]
    assert Counter(result.status for result in report).total() == CHECKS
