"""A fault counts as killed only if a whole run kills it: what one check leaves must not hide it from a later one.

All faults take many minutes, so each day has another part of them. A failure says how to repeat it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gradconform.reference.faults import FAULTS
from gradconform.sources.faults.distribution import judge_all
from gradconform.sources.faults.subject import SelftestOptions, Subject
from tests.daily_part import part_of_today

#: The variable that names another part than today's, such as 3/20.
VARIABLE = "GRADCONFORM_WHOLE_RUNS"

#: A part takes less than a minute of an idle core.
PARTS = 30


@pytest.mark.slow
def test_a_whole_run_kills_every_fault_of_a_part(record_property: Callable[..., None]) -> None:
    shard = part_of_today(PARTS, VARIABLE)
    record_property(VARIABLE, str(shard))
    names = [name for name, fault in FAULTS.items() if fault.dtypes is None or "float32" in fault.dtypes]
    subjects: list[Subject] = [("fault", name) for name in names[shard.index - 1 :: shard.count]]
    outcomes = judge_all(SelftestOptions(whole=True, exitfirst=True), subjects)
    survived = [outcome.name for outcome in outcomes if not outcome.right]
    assert survived == [], f"repeat it with {VARIABLE}={shard}"
