"""Runs of the command in separate processes, and targets that end or hang their process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

#: A stage backward that is plain autograd, but for what ``trouble`` does with the outputs before.
TARGET = """
import ctypes, os, signal, sys, time
import torch

calls = 0

{trouble}

def stage_backward(stage_output, output_grads, input_values):
    global calls
    calls += 1
    outputs = list(stage_output) if isinstance(stage_output, (tuple, list)) else [stage_output]
    trouble(outputs)
    torch.autograd.backward(outputs, output_grads or [None] * len(outputs))
    return tuple(value.grad for value in input_values)
"""


@dataclass(frozen=True)
class Run:
    """The outcome of a run of the command; ``report`` is its JSON report, by check."""

    code: int
    out: str
    err: str
    report: dict[str, Any]

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        return {result["check"]: result for result in self.report["results"]}

    @property
    def verdicts(self) -> dict[str, tuple[str, str | None]]:
        """Status and kind by check."""
        return {check: (result["status"], result["kind"]) for check, result in self.results.items()}


@pytest.fixture
def target(tmp_path: Path) -> Callable[[str], str]:
    """Write a target whose function ``trouble(outputs)`` has the given source; return its name."""

    def write(trouble: str) -> str:
        source = TARGET.replace("{trouble}", textwrap.dedent(trouble))
        (tmp_path / "target.py").write_text(source, encoding="utf-8")
        return "target.py"

    return write


@pytest.fixture
def command() -> list[str]:
    """The words of the command before its arguments."""
    return [sys.executable, "-m", "gradconform"]


@pytest.fixture
def judged(tmp_path: Path, command: list[str]) -> Callable[..., Run]:
    """Run the command ``run`` in an empty folder; return its outcome."""

    def run(*arguments: str, **variables: str) -> Run:
        path = tmp_path / "report.json"
        path.unlink(missing_ok=True)
        done = subprocess.run(
            [*command, "run", *arguments, "--json", str(path)],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return Run(done.returncode, done.stdout, done.stderr, report)

    return run
