"""The figures of docs/limits.md, measured anew by one command: python benchmarks/tables.py --write docs/limits.md.

Measures what stands between a pair of comments such as `<!-- measured: sensitivity -->` and `<!-- end -->` and writes
it there, with the date, the version of torch and the machine: how small an error is found (with a plot beside the
document), how often what is right is accused, what the kit costs, the self-test in every dtype, what each dimension of
the space alone finds, and what is withheld from a target whose gradients are in main_grad. Without --write it prints.
It takes about half an hour on two idle cores; --only measures one table, --fast so little that it says nothing but that
this works. It exits with 1 where what the kit promises is not so: a right trial that fails, a fault that survives, an
error of 3e-6 in float32 that is not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dimensions
import false_alarms
import fuzz_rate
import memory
import run_cost
import sensitivity
import shell_time
import startup
import torch
import withheld
from figures import measured, table

from gradconform.cli.selftest import run_selftest
from gradconform.sources.faults.subject import SelftestOptions

BLOCK = r"^<!-- measured: {} -->\n(.*?)^<!-- end -->$"
FLAGS = re.DOTALL | re.MULTILINE


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. ``plot`` is where the plot goes, if anywhere."""

    dtypes: Sequence[str] = sensitivity.DTYPES
    alarm_trials: int = 20_000
    sensitivity_trials: int = 100
    sensitivity_runs: int = 100
    rounds: int = 9
    fuzz_trials: int = 1000
    profile: str = "standard"
    faults: str = "*"
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    plot: Path | None = None


#: As little as shows that every table can be made.
FAST: dict[str, Any] = {
    "dtypes": ("float32", "bfloat16"),
    "alarm_trials": 5,
    "sensitivity_trials": 2,
    "sensitivity_runs": 1,
    "rounds": 1,
    "fuzz_trials": 10,
    "profile": "quick",
    "faults": "doubled",
}

Part = tuple[list[str], list[str]]


def small_errors(effort: Effort) -> Part:
    """Measure how small an error is found."""
    curves = sensitivity.measure(effort.dtypes, effort.sensitivity_trials)
    share = sensitivity.share_found(sensitivity.uniform(3e-6), "float32", effort.sensitivity_trials)
    sentence = (
        f"A uniform relative error of 3e-6 in float32 is found in {share:.0%} of {effort.sensitivity_trials} trials."
    )
    lines = [*sensitivity.table(curves), "", sentence]
    if effort.plot is not None:
        sensitivity.plot(curves, effort.plot)
        lines += ["", f"![Share of trials in which an error is found, by its size]({effort.plot.name})"]
    return lines, [] if share >= sensitivity.FOUND else [sentence]


def found_by_runs(effort: Effort) -> Part:
    """Measure how small a uniform error whole runs find, by the rule of the mean and without it."""
    return sensitivity.in_runs(effort.dtypes, effort.sensitivity_runs), []


def accused(effort: Effort) -> Part:
    """Measure how often what is right is accused."""
    rows = list(false_alarms.measure_all(false_alarms.TARGETS, effort.dtypes, effort.alarm_trials, effort.workers))
    alarms = [f"{row.target} {row.dtype}: {alarm}" for row in rows for alarm in row.alarms]
    return [false_alarms.HEAD, *map(str, rows)], alarms


def cost(effort: Effort) -> Part:
    """Measure what the kit costs; a missed goal is shown and no more, since a busy machine misses them."""
    figures = [
        *run_cost.measure(profile=effort.profile, rounds=effort.rounds).figures(),
        *fuzz_rate.measure(trials=effort.fuzz_trials),
        *(shell_time.measure(profile, rounds=min(effort.rounds, 3)) for profile in ("quick", effort.profile)),
        startup.measure(max(effort.rounds, 2)),
        *memory.measure(profile=effort.profile),
    ]
    return table(dict.fromkeys(figures)), []


def self_test(effort: Effort) -> Part:
    """Run the self-test in every dtype."""
    told = ("faults killed", "not tried", "right variants clean", "idle checks", "causes told", "processor time")
    names = ("dtype", *told)
    lines, wrong = [f"| {' | '.join(names)} |", f"|---{'|---:' * (len(names) - 1)}|"], []
    for dtype in effort.dtypes:
        matrix = run_selftest(SelftestOptions(dtype=dtype, profile=effort.profile), effort.faults)
        tried = len(matrix.faults) - len(matrix.untried)
        cells = (
            f"{sum(outcome.killed for outcome in matrix.faults)} of {tried}",
            f"{len(matrix.untried) + len(matrix.left_out)}",
            f"{sum(outcome.right for outcome in matrix.variants)} of {len(matrix.variants)}",
            f"{len(matrix.without_kills)}" if matrix.complete else "not asked",
            f"{sum(outcome.said for outcome in matrix.values)} of {len(matrix.values)}",
            f"{sum(outcome.seconds for outcome in matrix.outcomes):.0f} s",
        )
        lines.append(f"| {dtype} | {' | '.join(cells)} |")
        wrong += [f"selftest {dtype}: {outcome.name}" for outcome in matrix.outcomes if not outcome.right]
    return lines, wrong


def found_by_dimension(effort: Effort) -> Part:
    """Measure which faults the rows of each dimension show, and no others."""
    found = list(dimensions.measure(effort.faults))
    return dimensions.table(found), dimensions.problems(found, every=effort.faults == "*")


def withheld_from_main_grad(_: Effort) -> Part:
    """Count the checks that a target is not given because it accumulates into ``main_grad``."""
    return withheld.table(), []


PARTS: dict[str, Callable[[Effort], Part]] = {
    "sensitivity": small_errors,
    "runs": found_by_runs,
    "false-alarms": accused,
    "cost": cost,
    "selftest": self_test,
    "dimensions": found_by_dimension,
    "withheld": withheld_from_main_grad,
}


def problem_with(document: Path | None, parts: Sequence[str]) -> str | None:
    """Return why the document cannot be written to, before anything is measured, or None."""
    if document is None:
        return None
    if not document.is_file():
        return f"--write {str(document)!r}: there is no such file; expected one with the comments of docs/limits.md"
    text = document.read_text(encoding="utf-8")
    lacking = [part for part in parts if len(re.findall(BLOCK.format(part), text, FLAGS)) != 1]
    if lacking:
        wanted = f"<!-- measured: {lacking[0]} -->"
        return f"--write {str(document)!r}: expected {wanted} on a line of its own, once, and <!-- end --> behind it"
    if "sensitivity" in parts and find_spec("matplotlib") is None:
        return "the plot needs matplotlib, which is not installed: pip install -c constraints.txt --group dev"
    return None


def write(document: Path, part: str, lines: Sequence[str]) -> None:
    """Put the lines in the place of those that stand there."""
    text = document.read_text(encoding="utf-8")
    new = "\n".join([f"<!-- measured: {part} -->", "", *lines, "", "<!-- end -->"])
    document.write_text(re.sub(BLOCK.format(part), lambda _: new, text, flags=FLAGS), encoding="utf-8")


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, metavar="DOCUMENT", help="write into this document (default: print)")
    parser.add_argument("--only", action="append", choices=PARTS, help="only this table; may be repeated")
    parser.add_argument("--fast", action="store_true", help="measure next to nothing, to see that it works")
    options = parser.parse_args(arguments)
    options.parts = options.only or list(PARTS)
    problem = problem_with(options.write, options.parts)
    if problem is not None:
        parser.error(problem)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and write or print."""
    options = options_of(arguments)
    torch.set_num_threads(1)
    plot = None if options.write is None else options.write.with_name("sensitivity.svg")
    effort = Effort(plot=plot, **(FAST if options.fast else {}))
    failures: list[str] = []
    for part in options.parts:
        lines, wrong = PARTS[part](effort)
        failures += wrong
        command = ["python", "benchmarks/tables.py", "--only", part, *(["--fast"] if options.fast else [])]
        lines += ["", measured(shlex.join(command))]
        print(*lines, "", sep="\n", flush=True)
        if options.write is not None:
            write(options.write, part, lines)
    print(*failures, sep="\n", file=sys.stderr)
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
