"""Sharded stages of torch: what the kit finds on them, and the scripts that confirm each finding.

A folder beside this file holds the scripts, which know torch alone. Each shows what fails here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from packaging.version import Version

import gradconform

from .scripts import assert_shows_its_defect, scripts_of

VERSION = "2.13"
pytestmark = pytest.mark.skipif(
    Version(torch.__version__).release[:2] != (2, 13), reason=f"the scripts show torch {VERSION}, this is another"
)

#: The checks of profile quick, and those that fail.
QUICK: dict[str, tuple[int, set[str]]] = {
    "torch_styles:TransformerLayer": (42, set()),
    "torch_styles:LanguageModelEnds": (77, {"sharded.program.class-weights-with-ignored-labels"}),  # weighted_loss.py
    "torch_context:RingAttention": (36, set()),
    "torch_context:GatheredAttention": (24, set()),
    "torch_experts:Experts": (49, set()),
}


@pytest.mark.nightly
@pytest.mark.parametrize("script", scripts_of("torch"), ids=lambda script: script.stem)
def test_a_script_shows_its_defect(script: Path) -> None:
    assert_shows_its_defect(script)


@pytest.mark.slow
@pytest.mark.parametrize("stage", QUICK)
def test_a_run_reports_exactly_what_the_scripts_confirm(stage: str) -> None:
    report = gradconform.check_sharded_stage(f"gradconform.plugins.sharded.{stage}")
    checks, failed = QUICK[stage]
    assert {result.check for result in report if result.status == "failed"} == failed
    assert len(list(report)) == checks
    assert {result.status for result in report} <= {"passed", "failed", "not_run"}
    if not failed:
        assert {result.status for result in report} == {"passed"}


def test_a_balanced_rank_has_a_piece_from_either_end_as_torch_divides_them() -> None:
    from gradconform.plugins.sharded.torch_context import from_both_ends  # noqa: PLC0415 (of this torch)

    found = [from_both_ends(torch.arange(8).reshape(1, 8), {"cp": rank}, {"cp": 2}).tolist() for rank in range(2)]
    assert found == [[[0, 1, 6, 7]], [[2, 3, 4, 5]]]
