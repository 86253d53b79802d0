"""How long each command takes: python benchmarks/how_long.py [--only WORD] [--write docs/how-long.md].

Runs each command of the table once from the shell, with two workers where it has some, and prints its processor time
and how long it took. With --write, it writes them into the page. On two idle cores it takes half an hour.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from figures import measured
from shell_time import seconds
from tables import write

#: The commands, each with what it is.
COMMANDS = {
    "profile quick": "gradconform run reference-split --profile quick",
    "profile standard": "gradconform run reference-split --profile standard -n 2",
    "profile full": "gradconform run reference-split --profile full -n 2",
    "a test of yours": "pytest --gradconform reference-split --gradconform-profile quick -q",
    "one check again": "gradconform replay full.gradients.mlp reference-split",
    "training steps": "gradconform pipeline torch --profile quick",
    "one operation of a device": "gradconform device cpu --operation nn.functional.gelu",
    "a device": "gradconform device cpu -n 2",
    "the self-test": "gradconform selftest --device cpu --dtype float32",
    "the kit's own tests": f"python -m pytest -q -n 2 {Path(__file__).parents[1] / 'tests'}",
}


def row(what: str, command: str, folder: str) -> str:
    """Run a command in a folder; return its row of the table."""
    program, *words = shlex.split(command)
    python = Path(sys.executable)
    run = [str(python), *words] if program == "python" else [str(python.with_name(program)), *words]
    busy, took = seconds(run, folder)
    shown = command.replace(str(Path(__file__).parents[1] / "tests"), "tests")
    return f"| {what} | `{shown}` | {_time(busy)} | {_time(took)} |"


def _time(found: float) -> str:
    return f"{found:.0f} s" if found < 120 else f"{found / 60:.0f} min"  # noqa: PLR2004 (two minutes)


def main() -> None:
    """Measure, and print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=COMMANDS, help="only this row; may be repeated")
    parser.add_argument("--write", type=Path, help="the page to write the table into")
    given = parser.parse_args()
    lines = ["| | command | processor time | it took |", "|---|---|---:|---:|"]
    with tempfile.TemporaryDirectory() as folder:
        for what in given.only or COMMANDS:
            lines.append(row(what, COMMANDS[what], folder))
            print(lines[-1], flush=True)
    if given.write is not None:
        write(given.write, "how-long", [*lines, "", measured("python benchmarks/how_long.py")])


if __name__ == "__main__":
    main()
