"""Judge every implementation that has an adapter in the kit, and write docs/implementations.md.

``python benchmarks/implementations.py --write`` needs all of them: pip install --no-deps -r
constraints-implementations.txt. Without ``--write`` it judges those installed, prints the page, and names the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from docstrings import first_sentence

from gradconform.adapter import Capabilities
from gradconform.exits import EXIT_ENVIRONMENT
from gradconform.target.functions import FunctionsAdapter
from gradconform.target.resolve import resolve

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "implementations.md"
FOLDERS = ROOT / "tests" / "quality"

HEAD = """\
# Implementations

This page is for users of the implementations for which the kit has an adapter. It shows what each gets wrong, with a
script that confirms it. The runs used contract {contract}, profile `{profile}`, `cpu`, `float32`, seed {seed} and torch
{torch}. `python benchmarks/implementations.py --write` runs them again, after
`pip install --no-deps -r constraints-implementations.txt`.

*Unsupported* checks need a feature that the implementation refuses or excludes, so its adapter does not claim it. Each
script uses only the implementation. A test checks that no other check fails. Whether a failure is a defect depends on
the purpose of the implementation; the script shows what happens. [Runtimes](runtimes.md) has the training steps.

| target | drives | version | passed | failed MUST | failed SHOULD | unsupported |
|---|---|---|---:|---:|---:|---:|
"""

#: Measured by hand, outside this repository.
FOOT = Path(__file__).with_name("adapted_engines.md")


@dataclass(frozen=True)
class Implementation:
    """The report on one target, and the scripts that explain its failures."""

    folder: str
    target: str
    report: dict[str, Any]
    scripts: dict[str, list[str]]

    @property
    def counts(self) -> Counter[str]:
        """The number of checks by status."""
        found = Counter(result["status"] for result in self.report["results"])
        found.update(f"failed {result['level']}" for result in self.report["results"] if result["status"] == "failed")
        return found

    @property
    def failed(self) -> list[str]:
        """The checks that failed."""
        return [result["check"] for result in self.report["results"] if result["status"] == "failed"]


def tables() -> dict[str, dict[str, Any]]:
    """Return the tables of scripts by folder."""
    found = sorted(FOLDERS.glob("*/explained.toml"))
    return {path.parent.name: tomllib.loads(path.read_text(encoding="utf-8")) for path in found}


def of_this_torch(table: dict[str, Any]) -> bool:
    """Return whether a table is of another library, or of the installed torch."""
    return "distribution" in table or torch.__version__.partition("+")[0] in {
        table["version"],
        *table.get("same_on", []),
    }


def scripts_of(folder: str, known: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Return the patterns of every script that may explain a failure, by path under tests/quality."""
    table = known[folder]
    found = {f"{folder}/{script}": globs for script, globs in table["scripts"].items()}
    for path, globs in table.get("also", {}).items():
        found[path.removeprefix("../")] = globs
    for path, globs in scripts_of(table["inherits"], known).items() if "inherits" in table else ():
        found[path] = [*found.get(path, []), *globs]
    return found


def judged(folder: str, known: dict[str, dict[str, Any]]) -> Implementation | str:
    """Judge one target in its own process; return its report, or the message about an absent library."""
    target = known[folder]["target"]
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "report.json"
        command = [sys.executable, "-m", "gradconform", "run", target, "--json", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == EXIT_ENVIRONMENT:
            return done.stderr.strip()
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return Implementation(folder, target, report, scripts_of(folder, known))


def row(one: Implementation) -> str:
    """Return a target's row of the table."""
    target, counts = one.report["target"], one.counts
    home = f"`{driven(one.target)}`"
    numbers = (counts["passed"], counts["failed MUST"], counts["failed SHOULD"], counts["unsupported"])
    name = f"[{one.target}](#{one.target})"
    return f"| {name} | {home} | {target['version']} | {' | '.join(map(str, numbers))} |"


def driven(target: str) -> str:
    """Return the module under test."""
    adapter = resolve(target).adapter
    drives = getattr(adapter, "drives", None)
    return drives or next(iter(vars(adapter)["functions"].values())).__module__


def section(one: Implementation) -> list[str]:
    """Return the section of a target: its claims, and its defects with the number of checks that show each."""
    lines = [f"## {one.target}", "", f"Claims that differ from plain autograd's: {differing(one.target)}.", ""]
    if not one.failed:
        return [*lines, "Nothing failed.", ""]
    lines += ["| confirmed defect | checks |", "|---|---:|"]
    for path, globs in one.scripts.items():
        shown = [check for check in one.failed if any(fnmatchcase(check, glob) for glob in globs)]
        if shown:
            script = FOLDERS / path
            link = f"[{first_sentence(script).rstrip('.')}](../{script.relative_to(ROOT).as_posix()})"
            lines.append(f"| {link} | {len(shown)} |")
    return [*lines, ""]


def differing(target: str) -> str:
    """Return the claims of a target that differ from the defaults, except those that its functions withhold."""
    found, usual = resolve(target), Capabilities()
    claims, adapter = found.capabilities, found.adapter
    functions = isinstance(adapter, FunctionsAdapter)
    withheld = adapter.claims_withheld(torch.device("cpu"), torch.float32) if functions else frozenset()
    names = [field.name for field in fields(Capabilities) if field.name not in withheld]
    differs = [name for name in names if getattr(claims, name) != getattr(usual, name)]
    return ", ".join(f"`{name}={getattr(claims, name)}`" for name in differs) or "none"


def page(found: list[Implementation]) -> str:
    """Return docs/implementations.md."""
    report = found[0].report
    head = HEAD.format(
        contract=report["contract"],
        profile=report["profile"],
        seed=report["seed"],
        torch=report["environment"]["torch"],
    )
    sections = [line for one in found for line in section(one)]
    lines = [*head.splitlines(), *map(row, found), "", *sections, *FOOT.read_text(encoding="utf-8").splitlines()]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Judge, print or write, and name the absent libraries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/implementations.md")
    write = parser.parse_args().write
    known = tables()
    outcomes = [judged(folder, known) for folder in known if of_this_torch(known[folder])]
    absent = [outcome for outcome in outcomes if isinstance(outcome, str)]
    found = [outcome for outcome in outcomes if isinstance(outcome, Implementation)]
    for text in absent:
        print(text, file=sys.stderr)
    if write and absent:
        print("nothing was written: the page would lose what is absent here", file=sys.stderr)
        return 1
    if write:
        PAGE.write_text(page(found), encoding="utf-8")
    else:
        print(page(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
