"""Ranks that do not fit on a device are refused before any process starts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gradconform.devices.device import Device
from gradconform.naming import SelectionError, UnusableDeviceError
from gradconform.pipeline.placement import refuse_misplaced


@pytest.fixture
def one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every device has one index."""
    monkeypatch.setattr(Device, "device_count", lambda _: 1)


def test_the_cpu_takes_any_number_of_ranks() -> None:
    refuse_misplaced("cpu", 64)


@pytest.mark.usefixtures("one_index")
@pytest.mark.parametrize("name", ["cuda", "cuda:0"])
def test_more_ranks_than_indices_are_refused_with_both_numbers(name: str) -> None:
    refuse_misplaced(name, 1)
    with pytest.raises(SelectionError, match=rf"^2 ranks on this machine are too many for device '{name}': it has 1 "):
        refuse_misplaced(name, 2)


def test_a_device_without_a_communication_backend_is_refused_by_name() -> None:
    with pytest.raises(UnusableDeviceError, match=r"torch\.distributed has no communication backend for 'xla'"):
        refuse_misplaced("xla", 2)


@pytest.mark.parametrize("what", [("--schedule", "GPipe", "--ranks", "2"), ()], ids=["schedules", "training steps"])
def test_the_command_says_so_in_one_sentence_and_starts_nothing(what: tuple[str, ...], tmp_path: Path) -> None:
    words = [sys.executable, "-m", "gradconform", "pipeline", "reference-split" if what else "torch", *what]
    done = subprocess.run([*words, "--device", "simpy"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("gradconform: device 'simpy' cannot run a pipeline: torch.distributed has no")
    assert len(done.stderr.splitlines()) == 1
