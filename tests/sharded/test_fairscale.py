"""fairscale's sharded stage: its tensor-parallel layers are right, also under a split backward."""

from __future__ import annotations

import pytest

import gradconform

pytest.importorskip("fairscale", reason="fairscale is not installed: pip install 'gradconform[fairscale]'")

STAGE = "gradconform.plugins.sharded.fairscale_layers:Layers"


@pytest.mark.slow
@pytest.mark.parametrize("backward", ["", "reference-split"])
def test_every_check_passes(backward: str) -> None:
    report = gradconform.check_sharded_stage(STAGE, **({"backward": backward} if backward else {}))
    assert [f"{one.check}: {one.message}" for one in report if one.status != "passed"] == []
    assert {one.check.rpartition(".")[2] for one in report} > {"plain", "columns", "gathered"}


@pytest.mark.nightly
def test_every_pair_passes_on_every_mesh() -> None:
    report = gradconform.check_sharded_stage(STAGE, profile="standard")
    assert [f"{one.check}: {one.message}" for one in report if one.status != "passed"] == []
