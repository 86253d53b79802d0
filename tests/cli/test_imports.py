"""A command's own process imports no slow module that it does not need."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from gradconform.exits import EXIT_CONFORMS, EXIT_INCOMPLETE, EXIT_USAGE

OF_STEPS = ("torch.distributed.tensor", "torch.distributed.pipelining", "torch._dynamo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "unneeded"),
    [
        (["run", "autograd", "--checks", "full.gradients.mlp"], EXIT_INCOMPLETE, ("torch", "hypothesis")),
        (["device", "cpu", "--operation", "max"], EXIT_USAGE, ("torch",)),
        (["replay", "full.gradients.mlp", "autograd"], EXIT_CONFORMS, OF_STEPS),
        (["pipeline", "reference-split", "--checks", "step.plane"], EXIT_USAGE, OF_STEPS),
    ],
    ids=["run", "device", "replay", "training steps"],
)
def test_unneeded_modules_are_not_imported(
    arguments: list[str], code: int, unneeded: Sequence[str], tmp_path: Path
) -> None:
    script = f"""
import sys
from gradconform.cli import main
assert main({arguments}) == {code}
print([name for name in {unneeded} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
