"""A fault of values is told with its cause, as the catalogue has it."""

from __future__ import annotations

import re

import pytest

from gradconform import check_stage_backward
from gradconform.reference.faults import FAULTS, Fault

NAMEABLE = {name: fault for name, fault in FAULTS.items() if fault.cause is not None}


@pytest.mark.parametrize("fault", NAMEABLE.values(), ids=NAMEABLE)
def test_a_message_on_a_fault_says_its_cause(fault: Fault) -> None:
    report = check_stage_backward(fault.make(), checks=fault.named, strict=True)
    told = "\n".join(result.message for result in report)
    assert re.search(fault.cause or "", told), told
