"""The device of docs/devices.md in one file, and the command in a separate process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Tests in on_simx run in a process of their own that has loaded the device: see test_simx.py.
collect_ignore = [] if "gradconform.plugins.devices.simx" in sys.modules else ["on_simx"]

DOCS = Path(__file__).parents[2] / "docs" / "devices.md"

Process = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def documented() -> Callable[[str], list[str]]:
    """Return the Python blocks of docs/devices.md with the mark ``<!-- test: LABEL -->``."""

    def blocks(label: str) -> list[str]:
        text = DOCS.read_text(encoding="utf-8")
        return re.findall(rf"<!-- test: {re.escape(label)} -->\n```python\n(.*?)```", text, flags=re.DOTALL)

    return blocks


@pytest.fixture
def abacus(tmp_path: Path, documented: Callable[[str], list[str]]) -> Path:
    """A folder with the module ``abacus``."""
    (code,) = documented("file abacus.py")
    (tmp_path / "abacus.py").write_text(code, encoding="utf-8")
    return tmp_path


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """A module's command line, run in a separate process in ``tmp_path``."""

    def run(module: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "GRADCONFORM"))}
        kept["GRADCONFORM_WAIT_SECONDS"] = "3600"  # on a slow machine no line about a wait
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=tmp_path,
            env={**kept, "COLUMNS": "100", "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run
