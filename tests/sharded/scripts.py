"""Runs the scripts that show a defect of a library on two ranks, without the kit."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest


def scripts_of(library: str) -> list[Path]:
    """Return the scripts of a library, from the folder of its name."""
    return sorted(Path(__file__).with_name(library).glob("*.py"))


def assert_shows_its_defect(script: Path) -> None:
    """Check that a script prints what it expects and gets, and ends with the exit code of a defect."""
    __tracebackhide__ = True
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run([*launch, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "expected" in done.stdout, done.stderr
    assert "got" in done.stdout
    assert "Traceback" not in done.stdout
    assert "exitcode  : 1 " in done.stderr  # the script's own, not that of an error


def skip_unless_installed(library: str, version: str, requirement: str) -> None:
    """Skip a test unless a library of exactly this version is installed; ``requirement`` is what pip installs."""
    try:
        found = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{library} is not installed: pip install {requirement}")
    if found != version:
        pytest.skip(f"the scripts tell of {library} {version}, this is {found}")
