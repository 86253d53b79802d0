"""The devices that need neither hardware nor a compiler, each in a process of its own: lazy, and simpy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

JUDGED = """
import json, sys
import gradconform
from gradconform.devices import register_device
from gradconform.plugins.devices import DEVICE

register_device("DEVICE", DEVICE)
checks = ["full.*", "split.*", "state.*", "repeat.*", "schedule.*", "misuse.*"]
report = gradconform.check_stage_backward("reference-split", device="DEVICE", profile="quick", checks=checks)
json.dump([[result.check, result.status, result.message] for result in report.results], sys.stdout)
"""

OWN_WAYS = """
import torch
from gradconform.plugins.devices import DEVICE

torch.manual_seed(1)
torch.set_default_dtype(torch.float64)
view = torch.zeros(2, 2, device="DEVICE")
view[1].fill_(3.0)
leaf = torch.randn(3, 4, device="DEVICE", requires_grad=True)
layer = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.LayerNorm(5)).to("DEVICE")
for _ in range(2):
    layer(leaf * leaf).square().sum().backward()
DEVICE.synchronize(leaf.device)
twin = leaf.detach().cpu().requires_grad_()
on_cpu = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.LayerNorm(5))
on_cpu.load_state_dict({name: value.cpu() for name, value in layer.state_dict().items()})
for _ in range(2):
    on_cpu(twin * twin).square().sum().backward()
torch.testing.assert_close(leaf.grad.cpu(), twin.grad)
for own, other in zip(layer.parameters(), on_cpu.parameters()):
    torch.testing.assert_close(own.grad.cpu(), other.grad)
torch.manual_seed(3)
drawn = torch.rand(4, device="DEVICE").cpu()
torch.manual_seed(3)
assert torch.equal(torch.rand(4, device="DEVICE").cpu(), drawn)
try:
    torch.ones(2, device="DEVICE") + torch.ones(2)
except RuntimeError as error:
    print(view.cpu().tolist(), leaf.grad.device.type, "refused")
"""


def run(code: str, device: str) -> str:
    command = [sys.executable, "-W", "error", "-c", code.replace("DEVICE", device)]
    done = subprocess.run(command, capture_output=True, check=False, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("device", ["lazy", "simpy"])
def test_the_device_computes_the_same_as_the_cpu(device: str) -> None:
    assert run(OWN_WAYS, device) == f"[[0.0, 0.0], [3.0, 3.0]] {device} refused\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "limits"),
    [
        ("lazy", ("Input tensor is not a lazy tensor", "The operator aten::as_strided appears to be a view operator")),
        (
            "simpy",
            (
                "Could not run 'aten::_thnn_fused_lstm_cell'",
                "convolution_overrideable not implemented",
                "'_Module' object has no attribute 'device'",  # torch's checkpoint restores the device
            ),
        ),
    ],
)
def test_the_right_split_backward_has_no_failure(device: str, limits: tuple[str, ...]) -> None:
    results: list[Any] = json.loads(run(JUDGED, device))
    count = Counter(status for _, status, _ in results)
    assert set(count) == {"passed", "unsupported"}
    assert count["unsupported"] < len(results) / 10
    for check, status, message in results:
        assert status == "passed" or any(limit in message for limit in limits), (check, message)
