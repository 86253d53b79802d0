"""The command ``gradconform bench``: how many defects that other projects have shipped the kit finds."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Sequence

from gradconform.bench import DEFECTS, Defect
from gradconform.benching import Bench, Outcome, judge_bench
from gradconform.contract.extra_ids import chosen
from gradconform.devices.environment import environment
from gradconform.exits import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_ENVIRONMENT, EXIT_INCOMPLETE, EXIT_INTERRUPTED
from gradconform.report.bench_page import bench_lines, bench_page, listing
from gradconform.report.lines import Line
from gradconform.text.counts import count
from gradconform.user_input.values import SelectionError

from .console import kept, on_terminal, terminal, width, write, write_json
from .progress import progress_bar

#: The entry point that runs a record's command.
_COMMAND = "gradconform.cli:main"
#: Modules that the records' commands import late, including torch; the last one is slow itself.
_IMPORTS = (
    "gradconform.cli.run",
    "gradconform.cli.extra_checks",
    "gradconform.run.run",
    "torch.distributed.pipelining",
)


def bench(arguments: argparse.Namespace) -> int:
    """Judge defects that public issues report, and return the exit code.

    Exit code 1: a result differs from its record; 5: a defect could not be judged here.
    """
    defects = chosen_defects(arguments.defects)
    if arguments.list:
        write(listing(defects))
        return EXIT_CONFORMS
    if arguments.write is not None and len(defects) < len(DEFECTS):
        msg = f"--write writes the page of all {len(DEFECTS)} defects, but {len(defects)} are named; omit the names"
        raise SelectionError(msg)
    judged = _judged(defects, arguments.workers or os.cpu_count() or 1)
    code = _exit_code(judged)
    files: dict[str, tuple[str, str]] = {}
    if arguments.write is not None and judged.complete:
        files[arguments.write] = ("page", bench_page(judged))
    if arguments.json not in {None, "-"}:
        files[arguments.json] = ("bench as JSON", json.dumps(judged.to_dict(), indent=2) + "\n")
    notes = kept(files)
    if arguments.json == "-":
        write_json(judged.to_dict())
    else:
        lines = bench_lines(judged, width())
        left = len(judged.planned) - len(judged.outcomes)
        stopped = [Line(f"The bench was interrupted: {count(left, 'defect')} not judged", "warning")] if left else []
        if arguments.write is not None and not judged.complete:
            stopped.append(Line(f"{arguments.write} is not written: not all of its defects were judged", "warning"))
        write([*lines[:-1], *stopped, *(notes or []), lines[-1]])
    return EXIT_ENVIRONMENT if notes is None else code


def _exit_code(bench: Bench) -> int:
    if not bench.whole:
        return EXIT_INTERRUPTED
    if not bench.good:
        return EXIT_DOES_NOT
    return EXIT_CONFORMS if bench.complete else EXIT_INCOMPLETE


def chosen_defects(patterns: Sequence[str]) -> list[Defect]:
    """Return the defects whose name or class matches one of the patterns; all if there are no patterns.

    Raises :class:`~gradconform.user_input.values.SelectionError` for a pattern that matches nothing.
    """
    if not patterns:
        return list(DEFECTS.values())
    known = {name: {name} for name in DEFECTS}
    for name, defect in DEFECTS.items():
        known.setdefault(defect.area, set()).add(name)
    named = set().union(*chosen(patterns, known, "{} matches no defect of the bench, nor a class"))
    return [defect for name, defect in DEFECTS.items() if name in named]


def _judged(defects: Sequence[Defect], workers: int) -> Bench:
    """Judge defects with progress on a terminal; after ctrl-C, return those judged so far."""
    outcomes: dict[str, Outcome] = {}
    console, began = terminal() if on_terminal() else None, time.perf_counter()
    with progress_bar(console, "starting", len(defects), name_width=46, counted="not as recorded") as advance:

        def take(outcome: Outcome) -> None:
            outcomes[outcome.defect.id] = outcome
            advance(outcome.defect.id, done=True, counts=not outcome.as_recorded)

        with contextlib.suppress(KeyboardInterrupt):
            judge_bench(defects, _COMMAND, workers=workers, imports=_IMPORTS, on_outcome=take)
    return Bench(
        planned=defects,
        outcomes=[outcomes[defect.id] for defect in defects if defect.id in outcomes],
        seconds=time.perf_counter() - began,
        workers=workers,
        environment=environment(),
    )
