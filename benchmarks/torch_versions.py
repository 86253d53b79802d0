"""What works on which release of torch, and which defect of torch's stage backward is in which: docs/torch-versions.md.

Makes an environment per release, runs every command and every script of tests/quality/torch_2_13 there, and deletes it:
about 5 GB and half an hour each. What was found is kept in a file, so that releases can be run one by one:
`python benchmarks/torch_versions.py 2.15.0 --found found.json --write docs/torch-versions.md`. Where none is named, the
page is written of what was found before; `all` runs all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "tests" / "quality" / "torch_2_13").glob("*.py"))
RELEASES = ("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", "2.15.0")
#: What no command of the kit takes, and no script.
LIMIT_S = 1800

#: Each is right where it ends with 0; one that judges torch itself ends with 1 as well.
COMMANDS: dict[str, tuple[str, ...]] = {
    "contract": ("gradconform", "run", "torch"),
    "plugin": ("python", "-m", "pytest", "-q", "--gradconform", "reference-split", "--gradconform-profile", "quick"),
    "pipeline": ("gradconform", "pipeline", "torch", "--schedule", "all", "--ranks", "2"),
    "stage objects": ("gradconform", "stage-objects", "torch"),
    "schedule text": ("gradconform", "schedule-text", "torch"),
    "fuzz": ("gradconform", "fuzz", "reference-split", "--max-examples", "200"),
    "selftest": ("gradconform", "selftest", "--device", "cpu", "--dtype", "float32"),
    "lazy": ("gradconform", "run", "reference-split", "--device", "lazy", "--profile", "quick"),
    "simx": ("gradconform", "run", "reference-split", "--device", "simx", "--profile", "quick"),
    "simpy": ("gradconform", "run", "reference-split", "--device", "simpy", "--profile", "quick"),
    "replay": ("gradconform", "replay", "split.gradients.tied-apart", "torch"),
}
#: Those that judge torch, whose defects they tell.
OF_TORCH = frozenset({"contract", "pipeline", "stage objects", "schedule text", "replay"})

Found = dict[str, dict[str, Any]]


def made(release: str, folder: Path) -> Path:
    """Make an environment with a release of torch and this kit; return its folder of commands."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    scripts = folder / "bin"
    pip = [str(scripts / "pip"), "install", "-q"]
    subprocess.run([*pip, f"torch=={release}"], check=True)
    subprocess.run([*pip, "-c", "constraints.txt", "pytest", "."], check=True, cwd=ROOT)
    return scripts


def ended(scripts: Path, words: Sequence[str], folder: Path) -> tuple[int, str]:
    """Run a command of an environment; return its exit code and its last line."""
    path = f"{scripts}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "COLUMNS": "200"}
    try:
        done = subprocess.run(
            [str(scripts / words[0]), *words[1:]],
            cwd=folder, env=variables, check=False, text=True, timeout=LIMIT_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 124, f"took longer than {LIMIT_S} s"
    return done.returncode, next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "")


def measured(scripts: Path, folder: Path) -> dict[str, Any]:
    """Return what every command and every script came to in an environment."""
    return {
        "python": ended(scripts, ("python", "--version"), folder)[1].removeprefix("Python "),
        "torch": ended(scripts, ("python", "-c", "import torch; print(torch.__version__)"), folder)[1],
        "commands": {name: ended(scripts, words, folder) for name, words in COMMANDS.items()},
        "scripts": {path.stem: ended(scripts, ("python", str(path)), folder) for path in SCRIPTS},
    }


def cell(name: str, outcome: Sequence[Any] | None) -> str:
    """Return what the table says of a command: right, unavailable, or what it ended with."""
    if outcome is None:
        return ""
    code, line = outcome
    if code == 4:  # noqa: PLR2004 (the environment's exit code)
        return "unavailable"
    figure = re.search(r"\d+ of \d+ (extra )?checks \w+|\d+ MUST( and \d+ SHOULD)? failed|\d+ passed", line)
    told = f" ({figure[0]})" if figure else ""
    right = code == 0 or (code == 1 and name in OF_TORCH)
    return f"works{told}" if right else f"exit code {code}{told}"


def defect(outcome: Sequence[Any] | None) -> str:
    """Return whether a release shows a defect: its script ends with 1 and says what it expected."""
    if outcome is None:
        return "not run"
    code = outcome[0]
    return {0: "", 1: "×"}.get(code, "ends the process" if code < 0 or code > 128 else f"? ({code})")  # noqa: PLR2004 (a signal)


def table(head: str, rows: Mapping[str, Sequence[str]], releases: Sequence[str]) -> list[str]:
    """Return a table with a column per release."""
    lines = [f"| {head} | {' | '.join(releases)} |", f"|---{'|---' * len(releases)}|"]
    return [*lines, *(f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items())]


def page(found: Found) -> str:
    """Return the page of what was found."""
    known = [release for release in RELEASES if release in found]
    commands = {name: [cell(name, found[one]["commands"].get(name)) for one in known] for name in COMMANDS}
    scripts = {
        f"[{path.stem}](../{path.relative_to(ROOT).as_posix()})": [
            defect(found[one]["scripts"].get(path.stem)) for one in known
        ]
        for path in SCRIPTS
    }
    reasons = [
        f"- torch {one}, {name}: {found[one]['commands'][name][1].removeprefix('gradconform: ')}"
        for one in known
        for name in COMMANDS
        if found[one]["commands"].get(name, (0,))[0] == 4  # noqa: PLR2004 (as above)
    ]
    return "\n".join([
        "# What works on which release of torch, and what each gets wrong", "",
        "Written by `python benchmarks/torch_versions.py`; releases that are missing here were not run.", "",
        "A command *works* where it ends as it is to; those that judge torch itself tell the defects of torch, not of",
        "the kit. *Unavailable* is what the release lacks, with the reason below; an empty cell was not run.", "",
        *table("command", commands, known), "", *reasons, "",
        "## Which defect of torch's stage backward is in which release", "",
        "Each row is a script that uses torch alone; × says that it shows its defect on that release.", "",
        *table("script", scripts, known), "",
    ])  # fmt: skip


def main() -> None:
    """Run the releases that are named, keep what was found, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("releases", nargs="*", help="releases of torch, or all")
    parser.add_argument("--found", type=Path, required=True, help="the file that keeps what was found")
    parser.add_argument("--write", type=Path, help="the page")
    options = parser.parse_args()
    found: Found = json.loads(options.found.read_text()) if options.found.exists() else {}
    for release in RELEASES if options.releases == ["all"] else options.releases:
        with tempfile.TemporaryDirectory() as folder:
            found[release] = measured(made(release, Path(folder, "venv")), Path(folder))
        options.found.write_text(json.dumps(found, indent=2) + "\n")
        print(f"torch {release}: {found[release]['commands']}", flush=True)
    if options.write:
        options.write.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
