"""One wrong operation of a device hides no other, also in checks that do not compare at the edges of kernels."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Process = Callable[..., "subprocess.CompletedProcess[str]"]

TWO_WRONG = """
import torch

import gradconform.plugins.devices.simpy

LIBRARY = torch.library.Library("aten", "IMPL")
LIBRARY.impl("relu", lambda x: x.clamp(min=0) * 1.25, "PrivateUse1", allow_override=True)
LIBRARY.impl("threshold_backward", lambda g, x, at: g * (x > at) * 1.25, "PrivateUse1", allow_override=True)
"""


def test_every_wrong_operation_of_a_check_is_reported_once(tmp_path: Path, process: Process) -> None:
    (tmp_path / "two_wrong.py").write_text(TWO_WRONG, encoding="utf-8")
    done = process(
        "gradconform", "run", "reference-split", "--device", "simpy", "--device-plugin", "two_wrong",
        "--dtype", "float32", "--checks", "full.gradients.mlp", "--json", "out.json",
    )  # fmt: skip
    (result,) = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["results"]
    assert (result["status"], result["kind"]) == ("error", "device")
    causes = [finding["cause"]["names"][0] for finding in result["findings"]]
    assert list(dict.fromkeys(causes)) == ["aten::relu", "aten::threshold_backward"]
    assert "fix on the device: 2 operations, worst first" in done.stdout
    for line in result["message"].splitlines():
        clauses = line.split("; ")
        assert len(set(clauses)) == len(clauses)
        assert line.count("is wrong when called alone") <= 1
