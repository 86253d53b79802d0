"""Judge the training steps of every runtime, and print or write docs/runtimes.md.

Runs `gradconform pipeline RUNTIME --profile standard` for each registered runtime that is installed, a minute or more
each. --write writes the page; --only NAME judges and prints one runtime. With --reports FOLDER, runtimes with a report
there are not judged again, and the reports of others are kept there.
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docstrings import first_sentence

from gradconform.pipeline.training_step.composition import step_cases
from gradconform.pipeline.training_step.runtimes import ENTRY_POINTS
from gradconform.target.resolve import registered

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "runtimes.md"
#: The tables of scripts that confirm failures.
EXPLAINED = sorted((ROOT / "tests" / "pipeline").glob("*/explained.toml"))

#: The results of one runtime, by check.
Results = dict[str, dict[str, Any]]
#: The results and the last line of each runtime.
Found = dict[str, tuple[Results, str]]
#: Scripts, each with its runtime and the checks that it explains.
Scripts = dict[Path, tuple[str, list[str]]]

HEAD = """\
# Training steps, by runtime

This page is for users of these runtimes. It shows which compositions of a training step each runtime gets right.
`gradconform pipeline RUNTIME --profile standard` judged each on a CPU, with torch {torch}, in float32.
`python benchmarks/runtimes.py --write` runs all of them again.
"""
#: Below the first table.
MINUTES = "The minutes are those of judging on two cores, beside other work."
LEGEND = """\
Each row is one composition, named by its non-default values. A runtime that a row does not name withholds it: it does
not claim the composition, or refuses it with a message. A number after a runtime is that of the script below that
confirms the failure.
"""


def results_of(runtime: str, reports: Path | None) -> tuple[Results, str]:
    """Return the results of a runtime by check, and the last line; no results if it is not installed."""
    kept = reports / f"{runtime}.json" if reports else None
    if kept and kept.exists():
        report = json.loads(kept.read_text(encoding="utf-8"))
        return {one["check"]: one for one in report["results"]}, ""
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
        if kept:
            kept.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    return {one["check"]: one for one in report["results"]}, done.stdout.strip().splitlines()[-1]


def scripts() -> Scripts:
    """Return the scripts that confirm failures, each with its runtime and checks."""
    found = {}
    for path in EXPLAINED:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        for script, checks in {**table["scripts"], **table.get("also", {})}.items():
            found[(path.parent / script).resolve()] = table["target"], checks
    return found


def page(found: Found) -> str:
    """Return the page of the results by runtime."""
    explained = scripts()
    lines = [HEAD.format(torch=importlib.metadata.version("torch").partition("+")[0])]
    lines += ["| runtime | passed | failed | withheld | minutes |", "|---|---:|---:|---:|---:|"]
    lines += [*map(total, found.items()), "", MINUTES]
    whole = [name for name, (results, _) in found.items() if results and not wrong(results)]
    lines += ["", LEGEND + "".join(f"`{name}` passes every row, and no row names it.\n" for name in whole)]
    lines += ["| composition | passed | failed |", "|---|---|---|"]
    named = {name: results for name, (results, _) in found.items() if results and name not in whole}
    for case in step_cases("standard"):
        special = ", ".join(case.special.values()) or "all plain"
        passed = [name for name, results in named.items() if status(results, case.id) == "passed"]
        failed = [
            f"{name}{reason(status(results, case.id), numbers(explained, name, case.id))}"
            for name, results in named.items()
            if status(results, case.id) not in ("passed", "unsupported")
        ]
        lines.append(f"| `{case.id}`: {special} | {', '.join(passed)} | {', '.join(failed)} |")
    return "\n".join([*lines, "", *confirmed(explained, found)]) + "\n"


def status(results: Results, check: str) -> str:
    """Return the status of a check, "not run" if it has none."""
    return str(results[check]["status"]) if check in results else "not run"


def wrong(results: Results) -> list[str]:
    """Return the checks that a runtime did not pass."""
    return [check for check in results if status(results, check) != "passed"]


def total(one: tuple[str, tuple[Results, str]]) -> str:
    """Return the row of a runtime in the first table; of an absent one, why it is absent."""
    name, (results, line) = one
    if not results:
        return f"| `{name}` | not run: {line} | | | |"
    counts = Counter(result["status"] for result in results.values())
    minutes = sum(result["duration_s"] for result in results.values()) / 60
    return f"| `{name}` | {counts['passed']} | {counts['failed']} | {counts['unsupported']} | {minutes:.1f} |"


def numbers(explained: Scripts, runtime: str, check: str) -> list[int]:
    """Return the numbers of the scripts that confirm a failure of a runtime."""
    return [n for n, (target, checks) in enumerate(explained.values(), 1) if target == runtime and check in checks]


def reason(found: str, by: list[int]) -> str:
    """Return what follows a runtime that did not pass: the scripts, or the status if it is not a failure."""
    return "".join(f" [{number}]" for number in by) if found == "failed" else f" ({found})"


def confirmed(explained: Scripts, found: Found) -> Iterator[str]:
    """Yield the table of scripts: number, defect, runtime, and how many steps fail by it."""
    yield from ("## Confirmed defects", "", "Each script uses only torch and the project of the runtime.", "")
    yield from ("| | defect | runtime | steps |", "|---:|---|---|---:|")
    for number, (script, (runtime, checks)) in enumerate(explained.items(), 1):
        results = found.get(runtime, ({}, ""))[0]
        shown = sum(status(results, check) == "failed" for check in checks)
        link = f"[{first_sentence(script).rstrip('.')}]({os.path.relpath(script, PAGE.parent)})"
        yield f"| {number} | {link} | {runtime} | {shown} |"


def main() -> None:
    """Judge the runtimes, and print or write the page."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="write docs/runtimes.md")
    arguments.add_argument("--only", help="this runtime alone")
    arguments.add_argument("--reports", type=Path, help="read the reports in this folder, and keep new ones there")
    given = arguments.parse_args()
    names = [given.only] if given.only else sorted(registered(ENTRY_POINTS))
    text = page({name: results_of(name, given.reports) for name in names})
    if given.write:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
