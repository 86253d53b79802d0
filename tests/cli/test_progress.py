from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest
import torch

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(*arguments: str, **variables: str) -> tuple[int, str]:
    """Run the command on a pseudo-terminal of 100 columns; return its exit code and all it wrote."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in {"CI", "NO_COLOR", "FORCE_COLOR"}}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "100", **variables}
    with subprocess.Popen(
        [sys.executable, "-m", "gradconform", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    ) as running:
        os.close(theirs)
        written = b""
        while True:
            try:
                chunk = os.read(ours, 65536)
            except OSError:  # how Linux says that the other side is closed
                break
            if not chunk:
                break
            written += chunk
        code = running.wait()
    os.close(ours)
    return code, written.decode()


def test_a_terminal_shows_a_progress_bar_with_counts_and_a_coloured_verdict() -> None:
    code, written = on_a_terminal("run", "torch", "--checks", "split.gradients.output-view,full.gradients.mlp")
    plain = _ESCAPE.sub("", written)
    assert code == 1
    assert re.search(r"full\.gradients\.mlp .*\d/2 \d failed", plain)
    assert f"\x1b[1;31mtorch {torch.__version__}" in written
    assert plain.rstrip().splitlines()[-1].startswith(f"torch {torch.__version__}")


@pytest.mark.parametrize("variables", [{"CI": "true"}, {"TERM": "dumb"}])
def test_ci_and_a_dumb_terminal_get_plain_lines(variables: dict[str, str]) -> None:
    code, written = on_a_terminal("run", "autograd", "--checks", "full.gradients.mlp", **variables)
    assert code == 5
    assert "\x1b" not in written
    assert re.search(r"^full +1 of 1 +1 passed\r$", written, re.MULTILINE)


@pytest.mark.slow
def test_a_terminal_shows_progress_of_training_steps_and_of_device_probing() -> None:
    code, written = on_a_terminal("pipeline", "reference-split", "--schedule", "1F1B,GPipe", "--microbatches", "2")
    assert code == 0
    assert re.search(r"pipeline\S+ .*\d/\d+ 0 failed", _ESCAPE.sub("", written))
    code, written = on_a_terminal("doctor", "--device", "cpu")
    assert code == 0
    assert "probing devices in other processes" in _ESCAPE.sub("", written)
