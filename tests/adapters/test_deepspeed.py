"""The adapter of deepspeed leaves nothing behind in the process."""

from __future__ import annotations

import pytest
import torch

from gradconform import check_stage_backward
from gradconform.target.lookup import TargetError


def groups() -> int:
    """Return how many groups of processes there are after a few sessions, of which one cannot be opened."""
    report = check_stage_backward("deepspeed", checks=["full.gradients.mlp", "full.gradients.scalar-*"])
    assert report.summary["ran"] > 0
    return len(torch.distributed.distributed_c10d._world.pg_map)


def test_process_groups_are_closed_with_the_session() -> None:
    try:
        first = groups()
    except TargetError as error:
        pytest.skip(str(error))
    assert groups() == first
