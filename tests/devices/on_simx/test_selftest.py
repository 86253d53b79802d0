"""The self-test on a healthy simx: what the CPU tells of a wrong implementation, the device tells as well."""

from __future__ import annotations

from functools import lru_cache

import pytest
import torch

from gradconform import contract
from gradconform.drive.reference64 import OracleCache
from gradconform.reference.faults import FAULTS
from gradconform.reference.variants import VARIANTS
from gradconform.sources.faults.outcome import Outcome, Role
from gradconform.sources.faults.subject import SelftestOptions, judge

DEVICE, CPU = SelftestOptions(device="simx:0", profile="quick"), SelftestOptions(profile="quick")
SIMX_ORACLES, CPU_ORACLES = OracleCache(), OracleCache()

#: What it loses is what Python's collector happens upon.
BY_CHANCE = {"contexts-held-weakly-in-a-cycle"}
CHECKS = contract.checks_of()
#: Some faults and right variants: all take minutes, and `gradconform selftest --device simx:0` runs them.
SOME = sorted(FAULTS.keys() - BY_CHANCE)[::40]
SOME_RIGHT = sorted(VARIANTS)[::8]


@lru_cache
def on_simx(role: Role, name: str) -> Outcome:
    return judge(DEVICE, (role, name), SIMX_ORACLES)


@pytest.fixture
def graphs_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU make the graphs that a device makes: oneDNN's LSTM is one node, where its weights meet an input.

    A fault that goes by the nodes that use a parameter is another one there.
    """
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


@pytest.mark.usefixtures("graphs_of_a_device")
@pytest.mark.parametrize("name", SOME)
def test_a_fault_fails_the_same_checks_as_on_the_cpu(name: str) -> None:
    on_device, on_cpu = on_simx("fault", name), judge(CPU, ("fault", name), CPU_ORACLES)
    can = {check for check in on_cpu.failed if "sparse_grads" not in CHECKS[check].needs}  # simx has no sparse tensors
    assert set(on_device.failed) == can
    assert (on_device.errors, on_device.broke) == ((), None)


def test_the_quick_profile_finds_most_faults() -> None:
    assert sum(bool(on_simx("fault", name).failed) for name in SOME) > len(SOME) // 2


@pytest.mark.parametrize("name", SOME_RIGHT)
def test_a_right_variant_passes(name: str) -> None:
    on_device = on_simx("variant", name)
    assert on_device.right, (on_device.failed, on_device.errors)
