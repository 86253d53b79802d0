from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gradconform.cli import main

#: A stage backward that is plain autograd, full backward only.
FULL_ONLY = """
import torch

def stage_backward(stage_output, output_grads, input_values):
    outputs = stage_output if isinstance(stage_output, (tuple, list)) else [stage_output]
    torch.autograd.backward(outputs, output_grads or [None] * len(outputs))
    return tuple(value.grad for value in input_values)
"""


_HERE = ("run", "--no-isolation")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        return self.out.splitlines()[-1]


@pytest.fixture(autouse=True)
def plain_output_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("CI", raising=False)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """The command, run in this process with its checks: a worker process would import torch for every test."""

    def run(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main([part for word in arguments for part in (_HERE if word == "run" else (word,))])
        out, err = capsys.readouterr()
        return Outcome(code, out, err)

    return run


@pytest.fixture
def process(tmp_path: Path) -> Callable[..., Outcome]:
    """The command, run in a separate process in an empty folder."""

    def run(*arguments: str, **variables: str) -> Outcome:
        done = subprocess.run(
            [sys.executable, "-m", "gradconform", *arguments],
            env={**os.environ, **variables},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            encoding="utf-8",
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def target_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write a target's source into the current folder, which is empty."""
    monkeypatch.chdir(tmp_path)

    def write(source: str = FULL_ONLY, name: str = "backward.py") -> Path:
        path = tmp_path / name
        path.write_text(source, encoding="utf-8")
        return path

    return write
