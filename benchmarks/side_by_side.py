"""Measure what several checkouts cost, in turn: python benchmarks/side_by_side.py CHECKOUT [CHECKOUT ...].

A checkout is a folder with the kit's files and its own environment in .venv. Each figure is measured by the checkout's
own command, library or benchmark, in new processes with one thread: for every figure and round, one checkout after the
other, so that neighbours in time see the same machine. Prints a table in Markdown; seconds are the median of the
rounds. All checkouts judge one fault, benchmarks/one_line_fault.py.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from figures import ENVIRONMENT, measured

FAULT = Path(__file__).with_name("one_line_fault.py").resolve()

#: Python calls per check of profile quick; other imports and caches are made before.
_CALLS = """
import sys, threading
import gradconform
gradconform.check_stage_backward("reference-split", checks=["full.gradients.mlp"], profile="quick")
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call"
threading.setprofile(count)
sys.setprofile(count)
results = gradconform.check_stage_backward("reference-split", profile="quick").results
sys.setprofile(None)
threading.setprofile(None)
print(round(calls / len(results)))
"""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder with the kit's files and its environment."""

    folder: Path

    def python(self, *arguments: str, cwd: Path | None = None, codes: Sequence[int] = (0,)) -> str:
        """Return what a new process of this checkout's Python prints; raise if it ends with another code."""
        command = [str(self.folder / ".venv" / "bin" / "python"), *arguments]
        environment = {**ENVIRONMENT, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in codes:
            sys.exit(f"{self.folder}: {' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    @property
    def name(self) -> str:
        """The name of the folder, and its commit if git knows it."""
        git = ["git", "-C", str(self.folder), "rev-parse", "--short=7", "HEAD"]
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
        return f"{self.folder.name} {commit}".strip()


#: A figure's rounds: one number of a round, or words where a number says too little.
Rounds = list[float | str]


@dataclass
class Row:
    """One figure of all checkouts: its rounds by checkout, and how a number of it is written."""

    what: str
    written: str
    rounds: dict[Checkout, Rounds] = field(default_factory=dict)

    def line(self) -> str:
        """Return the row of the table."""
        return f"| {self.what} | {' | '.join(map(self.value, self.rounds.values()))} |"

    def value(self, rounds: Rounds) -> str:
        """Return the median of the rounds, or the last words."""
        numbers = [one for one in rounds if isinstance(one, (int, float))]
        return self.written.format(statistics.median(numbers)) if len(numbers) == len(rounds) else str(rounds[-1])


def run(checkout: Checkout, target: str) -> dict[str, float | str]:
    """Return the seconds of a standard run, how many checks it has, how many fail, and the bytes of its page."""
    with tempfile.TemporaryDirectory() as folder:
        page, report = Path(folder, "page.html"), Path(folder, "report.json")
        options = ["--profile", "standard", "--no-waivers", "--html", str(page), "--json", str(report)]
        started = time.perf_counter()
        checkout.python("-m", "gradconform", "run", target, *options, cwd=Path(folder), codes=(0, 1))
        seconds = time.perf_counter() - started
        results = json.loads(report.read_text(encoding="utf-8"))["results"]
        failed = sum(result["status"] == "failed" for result in results)
        return {"seconds": seconds, "checks": f"{len(results):,}, {failed} fail", "page": page.stat().st_size / 1000}


def calls(checkout: Checkout) -> dict[str, float | str]:
    """Return the Python calls per check."""
    return {"calls": float(checkout.python("-c", _CALLS))}


def rate(checkout: Checkout) -> dict[str, float | str]:
    """Return what the checkout's run_cost.py prints: a run divided by the bare work, and checks per second."""
    script = str(checkout.folder / "benchmarks" / "run_cost.py")
    printed = checkout.python(script, "--profile", "quick", "--rounds", "5")
    ratio = re.search(r"bare work: ([\d.]+);", printed)
    rates = re.search(r"checks per second of one core: (\d+) in the first run, (\d+) in later", printed)
    if ratio is None or rates is None:
        sys.exit(f"{script} printed no ratio and no rate:\n{printed}")
    return {"ratio": float(ratio[1]), "first": float(rates[1]), "later": float(rates[2])}


def memory(checkout: Checkout) -> dict[str, float | str]:
    """Return what the checkout's memory.py prints: MB of a standard run beyond torch's."""
    script = str(checkout.folder / "benchmarks" / "memory.py")
    found = re.search(r"beyond torch's: (\d+) MB", printed := checkout.python(script))
    if found is None:
        sys.exit(f"{script} printed no peak:\n{printed}")
    return {"memory": float(found[1])}


#: What is measured together, and the rows of the table that it gives: name, text, and format of a number.
MEASURED: dict[str, tuple[Callable[[Checkout], dict[str, float | str]], tuple[tuple[str, str, str], ...]]] = {
    "calls": (calls, (("calls", "Python calls per check, `reference-split`, profile quick", "{:,.0f}"),)),
    "right": (
        lambda checkout: run(checkout, "reference-split"),
        (("seconds", "`run reference-split --profile standard`", "{:.1f} s"), ("checks", "its checks", "{}")),
    ),
    "torch": (
        lambda checkout: run(checkout, "torch"),
        (("seconds", "`run torch`", "{:.1f} s"), ("checks", "its checks", "{}")),
    ),
    "fault": (
        lambda checkout: run(checkout, str(FAULT)),
        (
            ("seconds", "`run one_line_fault.py`", "{:.1f} s"),
            ("checks", "its checks", "{}"),
            ("page", "its page", "{:,.0f} KB"),
        ),
    ),
    "rate": (
        rate,
        (
            ("ratio", "run / bare work, quick", "{:.2f}"),
            ("first", "checks per second of one core, quick, first run", "{:.0f}"),
            ("later", "checks per second of one core, quick, later runs", "{:.0f}"),
        ),
    ),
    "memory": (memory, (("memory", "memory of a standard run beyond torch's", "{:.0f} MB"),)),
}


def table(checkouts: Sequence[Checkout], names: Sequence[str], rounds: int) -> list[str]:
    """Measure the named figures, and return the table's lines."""
    lines = [f"| | {' | '.join(one.name for one in checkouts)} |", f"|---|{'---:|' * len(checkouts)}"]
    for name in names:
        measure, texts = MEASURED[name]
        rows = {key: Row(what, written, {one: [] for one in checkouts}) for key, what, written in texts}
        for _ in range(rounds):
            for checkout in checkouts:
                found = measure(checkout)
                for key, row in rows.items():
                    row.rounds[checkout].append(found[key])
        lines += [row.line() for row in rows.values()]
        print(*lines[-len(rows) :], sep="\n", file=sys.stderr, flush=True)  # the whole takes minutes
    return lines


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT", help="a folder with its own .venv")
    parser.add_argument("--rounds", type=int, default=1, help="measure each figure so often (default: 1)")
    parser.add_argument("--only", nargs="+", choices=list(MEASURED), default=list(MEASURED), metavar="FIGURE")
    options = parser.parse_args()
    lacking = [str(one) for one in options.checkouts if not (one / ".venv" / "bin" / "python").exists()]
    if lacking:
        parser.error(f"no .venv/bin/python in {', '.join(lacking)}; make it as the README says")
    print(*table([Checkout(one.resolve()) for one in options.checkouts], options.only, options.rounds), sep="\n")
    print(f"\n{measured('benchmarks/side_by_side.py')}")


if __name__ == "__main__":
    main()
