"""Which composition of a training step which runtime gets right: docs/runtimes.md.

Runs every registered runtime that is installed by `gradconform pipeline RUNTIME --profile standard`, a minute or more
each, and prints the table, or writes it with --write; --only names one runtime, and prints its column alone.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from gradconform.pipeline.training_step.composition import step_cases
from gradconform.pipeline.training_step.runtimes import ENTRY_POINTS
from gradconform.target.resolve import registered

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "runtimes.md"
#: The tables of scripts that explain what fails.
EXPLAINED = sorted((ROOT / "tests" / "pipeline").glob("*/explained.toml"))

HEAD = """\
# Training steps, by runtime

Written by `python benchmarks/runtimes.py --write`, on a CPU, with torch {torch}, in float32. This page is for users of
these runtimes. It gives the results of `gradconform pipeline RUNTIME --profile standard` for each runtime of the kit.
A row is one composition, named by its non-default values. *withheld* means that the runtime does not claim the row, or
refuses it with a message. A number after *failed* is that of the script below, which uses only torch and that project.
"""


def results_of(runtime: str) -> tuple[dict[str, dict[str, Any]], str]:
    """Return the results of a runtime by check, and the closing line; no results where it is not installed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "gradconform",
            "pipeline",
            runtime,
            "--profile",
            "standard",
            "--json",
            "r.json",
        ]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=variables)
        file = Path(folder, "r.json")
        if not file.exists():
            return {}, (done.stderr or done.stdout).strip().splitlines()[-1]
        report = json.loads(file.read_text(encoding="utf-8"))
    return {one["check"]: one for one in report["results"]}, done.stdout.strip().splitlines()[-1]


def scripts() -> dict[Path, tuple[str, list[str]]]:
    """Return the scripts that explain what fails, and of each the runtime and its checks."""
    found = {}
    for path in EXPLAINED:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for script, checks in {**table["scripts"], **table.get("also", {})}.items():
            found[(path.parent / script).resolve()] = table["target"], checks
    return found


def cell(result: dict[str, Any], numbers: list[int]) -> str:
    """Return what a table says of one result."""
    if result["status"] == "failed":
        return " ".join(["**failed**", *(f"[{number}]" for number in numbers)])
    return {"passed": "passed", "unsupported": "withheld"}.get(result["status"], result["status"])


def page(found: dict[str, tuple[dict[str, dict[str, Any]], str]]) -> str:
    """Return the page of what was found by runtime."""
    explained = scripts()
    here = {name: results for name, (results, _) in found.items() if results}
    lines = [HEAD.format(torch=importlib.metadata.version("torch").partition("+")[0])]
    lines += [f"- `{name}`: {line}" for name, (_, line) in found.items()]
    lines += ["", f"| composition | {' | '.join(here)} |", "|---" * (len(here) + 1) + "|"]
    for case in step_cases("standard"):
        special = ", ".join(case.special.values()) or "all plain"
        cells = []
        for name, results in here.items():
            told_of = enumerate(explained.values(), 1)
            own = [number for number, (target, checks) in told_of if case.id in checks and name == target]
            cells.append(cell(results[case.id], own) if case.id in results else "not run")
        lines.append(f"| `{case.id}`: {special} | {' | '.join(cells)} |")
    counts = {name: Counter(one["status"] for one in results.values()) for name, results in here.items()}
    told = (f"{n['passed']} passed, {n['failed']} failed, {n['unsupported']} withheld" for n in counts.values())
    lines += [f"| together | {' | '.join(told)} |", "", "## What fails, by scripts", ""]
    for number, script in enumerate(explained, 1):
        lines.append(f"{number}. [{script.name}]({os.path.relpath(script, PAGE.parent)})")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Judge the runtimes, and print or write the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write docs/runtimes.md")
    arguments.add_argument("--only", help="this runtime alone")
    given = arguments.parse_args()
    names = [given.only] if given.only else sorted(registered(ENTRY_POINTS))
    text = page({name: results_of(name) for name in names})
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
