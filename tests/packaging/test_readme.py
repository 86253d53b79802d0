"""README.md shows a real run, explains its terms where they first appear, and stays short.

`python tests/packaging/test_readme.py` writes the picture anew. `tests/docs/test_snippets.py` runs its other commands.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCK = re.compile(r"(?<=```text\n)\$ gradconform run .*?(?=\n```)", re.DOTALL)
COMMAND = "run torch --checks property.mixed.02"
MOST_LINES = 180


def real_run() -> str:
    """Return what the command prints where no terminal is."""
    command = [str(Path(sys.executable).with_name("gradconform")), *COMMAND.split()]
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, check=False, text=True, env=environment).stdout


def picture(printed: str) -> str:
    """Return the cause, the check that shows it, how to see it again, and the verdict; … is left out."""
    printed = re.sub(r"(?<=2\.13\.0)\+\w+", "+cpu", printed)  # the numbers of a build for CUDA are the same
    cause = printed.partition("\n[1] ")[2].partition("\n\n")[0]
    assert "reproduce: " in cause, printed
    return f"$ gradconform {COMMAND}\n[1] {cause}\n…\n{printed.splitlines()[-1]}"


def test_the_first_example_of_the_readme_is_a_real_run() -> None:
    shown, new = BLOCK.search(TEXT), picture(real_run())
    assert shown is not None
    if f"torch {torch.__version__.partition('+')[0]}" in shown[0]:
        assert new == shown[0], "write it anew: python tests/packaging/test_readme.py"
    else:  # on another release other numbers come of the same defect; tests/quality says which
        assert re.search(r"^torch \S+ does NOT conform: 1 MUST failed", new.splitlines()[-1])
        assert new.splitlines()[:3] == shown[0].splitlines()[:3]


def test_the_readme_is_short() -> None:
    assert len(TEXT.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("word", ["`F`", "`B`", "`I`", "`W`", "**stage**", "**micro-batch**", "**program**"])
def test_the_readme_explains_each_term_before_the_first_example(word: str) -> None:
    shown = BLOCK.search(TEXT)
    assert shown is not None
    assert word in TEXT[: shown.start()]


def test_the_readme_has_no_glossary() -> None:
    assert "| word |" not in TEXT
    assert "## The words" not in TEXT


if __name__ == "__main__":
    new = picture(real_run())
    README.write_text(BLOCK.sub(lambda _: new, TEXT, count=1), encoding="utf-8")
