"""Megatron-core's sharded stages: what the kit finds on them, and the scripts that confirm each finding.

A folder beside this file holds the scripts, which know Megatron-core alone. Each shows what fails here.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

import gradconform

from .scripts import assert_shows_its_defect, scripts_of, skip_unless_installed

VERSION = "0.16.1"

#: The rows of profile quick that fail, each with the kinds of its causes; None if the kit names none.
FAILING: dict[str, dict[str, set[str | None]]] = {
    "megatron:CrossEntropy": {"smoothing-0.1": {"copies_unequal", "of_wrong_output"}},  # smoothed_loss.py
    "megatron:GPT": {
        "gathered-output": {"logarithm_counts", "of_wrong_output"},  # gathered_output.py
        "attention-sink": {"norm_of_one_part"},  # attention_sink_norm.py
    },
    "megatron_router:Router": {},
    "megatron_experts:Experts": {},
    "megatron_predictions:TwoTokens": {},
    "megatron_loss:MaskedLoss": {  # masked_loss.py
        "counts-unequal": {"mean_of_ranks"},
        "counts-none-on-one": {"divided_by_size_of"},
    },
}


@pytest.fixture(autouse=True)
def _installed() -> None:
    skip_unless_installed("megatron-core", VERSION, f"--no-deps megatron-core=={VERSION}")


@pytest.mark.nightly
@pytest.mark.parametrize("script", scripts_of("megatron_core"), ids=lambda script: script.stem)
def test_a_script_shows_its_defect_and_prints_expected_and_got(script: Path) -> None:
    assert_shows_its_defect(script)


@pytest.mark.slow
@pytest.mark.parametrize("stage", FAILING)
def test_a_run_reports_exactly_what_the_scripts_confirm(stage: str) -> None:
    report = gradconform.check_sharded_stage(f"gradconform.plugins.sharded.{stage}")
    found: dict[str, set[str | None]] = defaultdict(set)
    for result in report:
        if result.status != "passed":
            _, _, row = result.check.split(".", 2)
            found[row] |= {finding["cause"] and finding["cause"]["kind"] for finding in result.findings}
    assert found == FAILING[stage]


@pytest.mark.nightly
def test_a_router_is_wrong_only_with_a_loss_per_token_or_with_unequal_padding() -> None:
    report = gradconform.check_sharded_stage(
        "gradconform.plugins.sharded.megatron_router:Router", profile="standard", checks="sharded.gradients.*"
    )
    failed = [result.message.partition("\n")[0] for result in report if result.status == "failed"]
    assert failed
    assert all(
        ("padded" in row and "small scores" in row) or ("per token" in row) for row in failed
    )  # router_losses.py
    assert {result.status for result in report} == {"passed", "failed"}
