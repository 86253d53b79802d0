"""Faults at random moments over the commands of the kit: python benchmarks/soak.py [--faults 200] [--seed 20].

Each command is struck in a folder of its own: killed, stopped, short of memory, on a full disk, or by its target, which
exits, forks, hangs, or closes all that is open. After each fault there has to be a whole report, or a record that is
gone on with where the command keeps one, the right exit code, no process and no temporary file. Exits with 1 where that
is not so. A fault is repeated by its number and the seed. Linux only; a full disk is a small tmpfs, which root alone
mounts: for others the size of all files is limited in its place, which is told.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from figures import measured
from soak_run import Outcome, Struck, remove, whole_report
from soak_space import Fault, drawn
from tables import problem_with, write

#: What is drawn from where nothing is said.
FAULTS, SEED = 200, 20

_HEAD = ("number", "command", "fault", "how", "who", "when", "exit code", "because", "kept", "seconds")


def chosen(options: argparse.Namespace) -> list[Fault]:
    """Return the faults that are asked for."""
    if options.number is not None:
        return list(islice(drawn(options.seed), options.number - 1, options.number))
    found = (fault for fault in drawn(options.seed) if fnmatchcase(fault.kind.name, options.only))
    return list(islice(found, options.faults))


def outcomes(faults: Sequence[Fault], at_a_time: int, folder: Path) -> Iterator[Outcome]:
    """Run the faults, some at a time, and yield what came of each in their order."""

    def run(fault: Fault) -> Outcome:
        own = folder / f"fault-{fault.number}"
        found = Struck(fault, own, whole.result() if fault.kind.command == "bundle" else None).judge()
        if not found.problems:
            remove(own)
        return found

    with ThreadPoolExecutor(max_workers=1) as background, ThreadPoolExecutor(max_workers=at_a_time) as pool:
        if any(fault.kind.command == "bundle" for fault in faults):
            whole = background.submit(whole_report, folder)
        yield from pool.map(run, faults)


def row(outcome: Outcome) -> str:
    """Return what came of a fault as a line."""
    kind = outcome.fault.kind
    when = f"{kind.moment}{'' if kind.once else ', each time'}" if outcome.struck else f"{kind.moment}, missed"
    cells = (
        *(outcome.fault.number, kind.command, kind.fault, kind.how, kind.who, when),
        *(outcome.code, outcome.why, outcome.kept, f"{outcome.seconds:.0f}"),
    )
    return f"| {' | '.join(map(str, cells))} |"


def summary(found: Iterable[Outcome]) -> list[str]:
    """Return a table in Markdown: by command and fault, how many there were, how they ended, what was kept."""
    by_pair: dict[tuple[str, str], list[Outcome]] = {}
    for one in found:
        by_pair.setdefault(one.fault.kind.pair, []).append(one)
    lines = ["| command | fault | faults | exit codes | afterwards | left behind |", "|---|---|---:|---|---|---:|"]
    for (command, fault), those in sorted(by_pair.items()):
        codes, kept = (
            Counter(map(str, values)) for values in zip(*((one.code, one.kept) for one in those), strict=True)
        )
        cells = (
            *(command, fault, str(len(those)), _counted(codes), _counted(kept)),
            str(sum(bool(one.problems) for one in those)),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _counted(values: Counter[str]) -> str:
    return ", ".join(f"{value or 'no report'} ({times})" for value, times in sorted(values.items()))


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=FAULTS, metavar="N", help=f"how many (default: {FAULTS})")
    parser.add_argument("--seed", type=int, default=SEED, metavar="S", help=f"(default: {SEED})")
    parser.add_argument("--number", type=int, metavar="N", help="only this fault")
    parser.add_argument("--only", default="*", metavar="COMMAND/FAULT", help="a glob, such as 'run/*' or '*/full disk'")
    parser.add_argument("--at-a-time", type=int, default=2, metavar="N", help="(default: 2)")
    parser.add_argument("--write", type=Path, metavar="DOCUMENT", help="write the figures into this document")
    options = parser.parse_args(arguments)
    problem = problem_with(options.write, ["soak"])
    if problem is not None:
        parser.error(problem)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the faults, print what came of each, and write the figures."""
    options = options_of(arguments)
    folder = Path(tempfile.mkdtemp(prefix="gradconform-soak-"))
    faults, found = chosen(options), []
    print(f"| {' | '.join(_HEAD)} |", flush=True)
    for one in outcomes(faults, options.at_a_time, folder):
        found.append(one)
        print(row(one), flush=True)
        again = f"python benchmarks/soak.py --seed {options.seed} --number {one.fault.number}"
        for problem in one.problems:
            print(f"  {problem}\n  {folder / f'fault-{one.fault.number}'}; again: {again}", flush=True)
    wrong = sum(bool(one.problems) for one in found)
    lines = [*summary(found), "", f"{len(found)} faults, {wrong} of which left a process or a file, or ended wrongly."]
    if os.geteuid() != 0:
        lines.append("A full disk was a limit on the size of files, since nobody but root can mount one.")
    command = ["python", "benchmarks/soak.py", "--faults", str(len(found)), "--seed", str(options.seed)]
    command += ["--only", options.only] if options.only != "*" else []
    lines += ["", measured(shlex.join(command))]
    print("", *lines, sep="\n")
    if options.write is not None:
        write(options.write, "soak", lines)
    if not wrong:
        remove(folder)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
