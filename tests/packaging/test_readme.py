"""README.md says what is so: its picture is a real run, and its options are those that exist.

`python tests/packaging/test_readme.py` writes the picture anew.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from gradconform.run.options import OPTIONS

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text(encoding="utf-8")
BLOCK = re.compile(r"(?<=```text\n).*?(?=\n```)", re.DOTALL)
CAUSES, LINES_OF_A_CAUSE = 3, 8
TORCH = f"torch {torch.__version__.partition('+')[0]}"


def real_run() -> str:
    """Return what the command prints where no terminal is."""
    command = [str(Path(sys.executable).with_name("gradconform")), "run", "torch"]
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(command, capture_output=True, check=False, text=True, env=environment).stdout


def picture(printed: str) -> str:
    """Return the head, the first causes, each cut, and the closing lines; … stands for what is left out."""
    printed = re.sub(r"(?<=2\.13\.0)\+\w+", "+cpu", printed)  # the numbers of a build for CUDA are the same
    lines = [line for line in printed.splitlines() if not line.startswith("file ")]
    starts = [index for index, line in enumerate(lines) if re.match(r"\[\d+\] ", line)]
    shown = ["$ gradconform run torch", *lines[: starts[0]]]
    for start, end in pairwise(starts[: CAUSES + 1]):
        cause = lines[start : end - 1]
        shown += [*cause[:LINES_OF_A_CAUSE], *(["      …"] if len(cause) > LINES_OF_A_CAUSE else []), ""]
    return "\n".join([*shown, "…", "", *lines[-2:]])


def planned(shown: str) -> list[str]:
    """Return what a picture tells of the contract alone: the areas, and how many checks each has."""
    return re.findall(r"^contract .*|^\w+ +\d+ of \d+(?=  )|of \d+ checks of contract [\d.]+", shown, re.MULTILINE)


def test_the_picture_is_a_real_run() -> None:
    shown, new = BLOCK.search(TEXT), picture(real_run())
    assert shown is not None
    if TORCH in shown[0]:
        assert new == shown[0], "write it anew: python tests/packaging/test_readme.py"
    else:  # on another release other checks fail of the same contract; tests/quality says which
        assert planned(new) == planned(shown[0])
        assert f"judges {TORCH}" in new
        assert re.fullmatch(rf"{re.escape(TORCH)}\S* does NOT conform: .* failed", new.splitlines()[-1])


@pytest.mark.parametrize(
    ("column", "command"), [(0, ("-m", "gradconform", "run", "--help")), (1, ("-m", "pytest", "--help"))]
)
def test_every_option_of_the_table_exists_and_every_option_is_in_the_table(
    column: int, command: tuple[str, ...]
) -> None:
    printed = subprocess.run([sys.executable, *command], capture_output=True, check=True, text=True).stdout
    options = {
        option
        for option in re.findall(r"^\s+(?:-\w(?: N)?, )?(--[a-z-]+)", printed, re.MULTILINE)
        if column == 0 or "gradconform" in option
    }
    rows = [line.split("|")[1:3] for line in TEXT.splitlines() if line.startswith("| `")]
    told = {found[0] for row in rows if (found := re.findall(r"--[a-z-]+", row[column]))}
    assert told - {"--collect-only"} == options - {"--help"}


def test_the_table_says_of_each_option_of_a_run_what_the_one_list_says() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in TEXT.splitlines() if line.startswith("| `")]
    told = {row[0].strip("`"): (row[1].strip("`"), row[2].replace("`", "")) for row in rows}
    for option in OPTIONS.values():
        command = option.flag if option.name == "target" or not option.metavar else f"{option.flag} {option.metavar}"
        plugin = "--gradconform TARGET" if option.name == "target" else f"--gradconform-{option.word}"
        assert told[command] == (plugin, "" if option.name == "target" else option.shown)


def test_every_link_leads_to_a_file() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", TEXT) if "://" not in link]
    assert [link for link in links if not (README.parent / link).exists()] == []


if __name__ == "__main__":
    new = picture(real_run())
    README.write_text(BLOCK.sub(lambda _: new, TEXT, count=1), encoding="utf-8")
