"""Every option of simx has the verdict that docs/devices-results.md says: no right implementation fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gradconform.devices.device import device_of
from gradconform.devices.preflight import PREFLIGHT
from gradconform.devices.probe import WrongAnswerError
from gradconform.plugins.devices.simx import OPTIONS, inject
from gradconform.run.options import RunOptions
from gradconform.run.run import Run

DOCS = Path(__file__).parents[3] / "docs" / "devices-results.md"
SPLIT = "split.gradients.mlp"

#: By option: its value, the check that is run, the dtype and device, and what comes of it.
JUDGED = {
    "memory_limit": ("1500", SPLIT, "float32 simx:0", "error: environment"),
    "no_memory_stats": ("1", SPLIT, "float32 simx:0", "passed"),
    "no_dtypes": ("float64", SPLIT, "float64 simx:0", "unsupported"),
    "narrow_float64": ("1", SPLIT, "float64 simx:0", "error: device"),
    "no_ops": ("aten::convolution", "full.gradients.conv2d", "float32 simx:0", "unsupported"),
    "cpu_result": ("aten::mm", SPLIT, "float32 simx:0", "unsupported"),
    "cpu_fallback": ("aten::mm", SPLIT, "float32 simx:0", "passed"),
    "rough": ("aten::tanh:64", SPLIT, "float32 simx:0", "passed"),
    "atomics": ("1", "full.gradients.embedding", "float32 simx:0", "passed"),
    "late_streams": ("1", SPLIT, "float32 simx:0", "passed"),
    "own_random": ("1", "state.rng.dropout-split", "float32 simx:0", "passed"),
    "bfloat16_accumulate": ("1", "full.gradients.mlp", "bfloat16 simx:0", "error: device"),
    "flush_denormals": ("1", SPLIT, "float32 simx:0", "passed"),
    "nondeterministic": ("1", SPLIT, "float32 simx:0", "passed"),
    "wrong": ("aten::mm:transpose", SPLIT, "float32 simx:0", "error: device"),
    "wrong_above": ("32768", SPLIT, "float32 simx:0", "passed"),
    "copying_views": ("1", SPLIT, "float32 simx:0", "passed"),
    "mix_with_cpu": ("1", SPLIT, "float32 simx:0", "passed"),
    "one_index": ("1", SPLIT, "float32 simx:1", "error: device"),
    "unseeded": ("1", "state.rng.dropout-split", "float32 simx:0", "error: device"),
    "slow": ("aten::mm:1", SPLIT, "float32 simx:0", "passed"),
    "lost_at": ("60", SPLIT, "float32 simx:0", "error: environment"),
}

#: What needs a process of its own: tests/runs/test_on_simx.py, test_device_on_simx.py and test_as_an_h100.py, and
#: test_simx.py for the number of devices.
IN_PROCESSES = {
    "tf32": "passed",
    "rough_cells": "passed",
    "devices": "passed",
    "hang_at": "error: environment",
    "abort_at": "error: environment",
    "segfault_at": "error: environment",
    "abort_at_exit": "passed",
}

#: Which line of the pre-flight tells what no verdict does, or tells it as well.
LINES = {
    "copying_views": "view_writes_through",
    "mix_with_cpu": "mixing_is_refused",
    "one_index": "index_is_kept",
    "unseeded": "seeding_reproduces",
}


@pytest.mark.parametrize("option", JUDGED)
def test_the_verdict_is_the_documented_one(option: str) -> None:
    value, check, place, expected = JUDGED[option]
    dtype, device = place.split()
    run = Run(RunOptions.of("reference-split", device=device, dtype=dtype, profile="standard", checks=check))
    with inject(**{option: value}):
        (result,) = run.run().results
    kind = f": {result.kind}" if result.status == "error" else ""
    assert f"{result.status}{kind}" == expected, result.message


@pytest.mark.parametrize("option", LINES)
def test_the_pre_flight_reports_the_option(option: str) -> None:
    device = device_of("simx:1")
    (line,) = [line for line in PREFLIGHT.values() if line.__name__ == LINES[option]]
    line(device)
    with inject(**{option: "1"}), pytest.raises(WrongAnswerError):
        line(device)


def test_the_documentation_has_the_verdict_of_each_option() -> None:
    expected = {**{option: row[-1] for option, row in JUDGED.items()}, **IN_PROCESSES}
    assert set(expected) == set(OPTIONS)
    rows = re.findall(
        r"^\| `([a-z_0-9]+)` \| (passed|unsupported|error: \w+) \|", DOCS.read_text("utf-8"), re.MULTILINE
    )
    assert dict(rows) == expected
    assert len(rows) == len(expected)
