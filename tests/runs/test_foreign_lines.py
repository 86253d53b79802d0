"""What processes print comes after the lines of a progress, none of it lost, and never between them."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import IO, Any, cast

import pytest

from gradconform.process import pipes

Judged = Callable[..., Any]
Target = Callable[[str], str]


def printed(text: bytes, name: Any = "stderr") -> pipes.Printed:
    reader, writer = os.pipe()
    os.write(writer, text)
    os.close(writer)
    return pipes.Printed(cast("IO[bytes]", os.fdopen(reader, "rb", 0)), name, passed_on=True)


def test_foreign_output_is_printed_after_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with pipes.printed_afterwards():
        printed(b"terminate called without an active exception\n").wait(10)
        out.write("full 1 of 1\n")
    assert out.getvalue() == "full 1 of 1\nterminate called without an active exception\n"


def interrupted() -> None:
    with pipes.printed_afterwards():
        printed(b"last words\n").wait(10)
        raise KeyboardInterrupt


def test_foreign_output_is_printed_even_if_the_run_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert out.getvalue() == "last words\n"


def test_only_the_end_of_long_foreign_output_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(pipes, "_MOST_HELD", 12)
    with pipes.printed_afterwards():
        printed(b"the first\n").wait(10)
        printed(b"the last\n").wait(10)
    assert out.getvalue() == "the last\n"


NOISY = """
def trouble(outputs):
    print("UserWarning: of a library", file=sys.stderr, flush=True)
    print("a line")
"""


def test_progress_lines_of_a_run_are_not_interrupted_by_foreign_output(judged: Judged, target: Target) -> None:
    run = judged(target(NOISY), "--checks", "full.gradients.mlp", "--checks", "full.loss.mlp")
    lines = run.out.splitlines()
    progress = next(number for number, line in enumerate(lines) if line.startswith("full "))
    assert "a line" not in lines[:progress]
    assert "a line" in lines[progress:]
    assert "UserWarning: of a library" in run.err
