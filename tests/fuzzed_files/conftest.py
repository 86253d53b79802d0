"""Valid files of every kind, made by the kit itself on a contract of a few checks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gradconform import contract
from gradconform.cli import main

CHECKS = ("full.gradients.linear-3d", "full.gradients.mlp", "full.gradients.residual", "accumulate.in_place.full")

TARGET = """
import torch

def stage_backward(stage_output, output_grads, input_values):
    outputs = stage_output if isinstance(stage_output, (tuple, list)) else [stage_output]
    torch.autograd.backward(outputs, output_grads or [None] * len(outputs))
    return tuple({grad} for value in input_values)
"""

WAIVERS = """
[[waiver]]
check = "full.gradients.mlp"
verdict = ["mismatch"]
reason = "known"
issue = "#7"
owner = "ada"
expires = 2999-12-31
when = { torch = ">=2.6", device = "cpu" }

[[waiver]]
check = "full.gradients.r*"
verdict = "mismatch"
reason = "known"
issue = "#8"
owner = "ada"
expires = 2999-12-31
"""

Kept = dict[str, bytes]


@pytest.fixture(scope="session")
def _once() -> Kept:
    return {}


@pytest.fixture
def valid(
    _once: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, contract_of: Callable[..., None]
) -> Callable[[], Kept]:
    """Write the valid files into the current folder, an empty one, again and again; return what they hold."""
    monkeypatch.chdir(tmp_path)
    known = contract.checks_of()
    contract_of([known[name] for name in CHECKS])
    if not _once:
        _make()
        _once.update({path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()})

    def write() -> Kept:
        for path in tmp_path.iterdir():
            if path.is_file() and path.name not in _once:
                path.unlink()
        for name, held in _once.items():
            if not Path(name).is_file() or Path(name).read_bytes() != held:
                Path(name).write_bytes(held)
        return _once

    write()
    return write


def _make() -> None:
    Path("right.py").write_text(TARGET.format(grad="value.grad"), encoding="utf-8")
    Path("wrong.py").write_text(TARGET.format(grad="value.grad * 2"), encoding="utf-8")
    Path("waivers.toml").write_text(WAIVERS, encoding="utf-8")
    Path("schedule.csv").write_text("0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n", encoding="utf-8")
    run = ("run", "right.py", "--no-isolation", "--profile", "full")
    assert main([*run, "--json", "whole.json", "--ndjson", "run.ndjson"]) == 0
    for part in (1, 2):
        main([*run, "--shard", f"{part}/2", "--json", f"part-{part}.json"])
    assert main(["run", "wrong.py", "--no-isolation", "--profile", "full", "--json", "failed.json"]) == 1
    waived = ("run", "wrong.py", "--no-isolation", "--profile", "full", "--waivers", "waivers.toml")
    main([*waived, "--json", "waived.json"])
    assert json.loads(Path("waived.json").read_text())["summary"]["waived"]
    lines = Path("run.ndjson").read_bytes().splitlines(keepends=True)
    Path("cut.ndjson").write_bytes(b"".join(lines[:-3]))
    assert main(["bundle", "whole.json", "-o", "bundle.zip", "--ndjson", "run.ndjson"]) == 0


def make_steps(kept: Kept) -> None:
    """Add the report of training steps to the valid files; its ranks take seconds, and few tests read it."""
    if "steps.json" not in kept:
        steps = ("--checks", "step.plain", "--checks", "step.fsdp-evaluated", "--json", "steps.json")
        assert main(["pipeline", "torch", *steps]) == 1
        kept["steps.json"] = Path("steps.json").read_bytes()
