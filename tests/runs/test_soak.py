"""The soak of benchmarks/soak.py: what it draws, and that it finds nothing left behind."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def space() -> ModuleType:
    """What the soak draws from."""
    spec = importlib.util.spec_from_file_location("soak_space", SOAK.with_name("soak_space.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", [0, 20])
def test_two_hundred_faults_cover_every_value_and_every_command_fault_pair(space: ModuleType, seed: int) -> None:
    drawn = [fault.kind for fault in islice(space.drawn(seed), 200)]
    for field in ("command", "fault", "how", "who", "moment", "once"):
        assert {getattr(kind, field) for kind in drawn} == {getattr(kind, field) for kind in space.kinds()}
    times = Counter(kind.pair for kind in drawn)
    assert set(times) == {kind.pair for kind in space.kinds()}
    assert max(times.values()) - min(times.values()) <= 1


def test_each_form_of_a_fault_occurs_in_every_command_that_has_it(space: ModuleType) -> None:
    drawn = {(fault.kind.command, fault.kind.how) for fault in islice(space.drawn(20), 200)}
    assert drawn == {(kind.command, kind.how) for kind in space.kinds()}


def test_a_fault_is_decided_by_its_number_and_seed(space: ModuleType) -> None:
    first, again = (list(islice(space.drawn(7), 50)) for _ in range(2))
    assert first == again
    assert [fault.number for fault in first] == list(range(1, 51))
    assert first != list(islice(space.drawn(8), 50))


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_eight_faults_leave_no_process_and_no_file(tmp_path: Path) -> None:
    words = [sys.executable, str(SOAK), "--faults", "8", "--only", "[!b]*"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 faults, 0 of which left a process or a file, or ended wrongly." in done.stdout
    assert list(tmp_path.glob("gradconform-*")) == []
