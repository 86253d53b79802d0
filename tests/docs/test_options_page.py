"""docs/options.md has every option of a run and of pytest, with what the one list of options says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradconform.run.options import OPTIONS

TEXT = (Path(__file__).parents[2] / "docs" / "options.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("column", "command"), [(0, ("-m", "gradconform", "run", "--help")), (1, ("-m", "pytest", "--help"))]
)
def test_the_table_lists_exactly_the_existing_options(column: int, command: tuple[str, ...]) -> None:
    printed = subprocess.run([sys.executable, *command], capture_output=True, check=True, text=True).stdout
    options = {
        option
        for option in re.findall(r"^\s+(?:-\w(?: N)?, )?(--[a-z-]+)", printed, re.MULTILINE)
        if column == 0 or "gradconform" in option
    }
    rows = [line.split("|")[1:3] for line in TEXT.splitlines() if line.startswith("| `")]
    told = {found[0] for row in rows if (found := re.findall(r"--[a-z-]+", row[column]))}
    assert told - {"--collect-only"} == options - {"--help"}


def test_the_table_describes_each_run_option_as_the_option_list_does() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in TEXT.splitlines() if line.startswith("| `")]
    told = {row[0].strip("`"): (row[1].strip("`"), row[2].replace("`", "")) for row in rows}
    for option in OPTIONS.values():
        command = option.flag if option.name == "target" or not option.metavar else f"{option.flag} {option.metavar}"
        plugin = "--gradconform TARGET" if option.name == "target" else f"--gradconform-{option.word}"
        assert told[command] == (plugin, "" if option.name == "target" else option.shown)
