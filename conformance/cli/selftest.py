"""The command ``gradconform selftest``: whether the contract finds known faults on this device."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from gradconform.contract.shard import Shard
from gradconform.devices.choice import one_cell
from gradconform.exits import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_ENVIRONMENT, EXIT_INTERRUPTED
from gradconform.report.kill_matrix import kill_lines, kill_page, kill_values
from gradconform.report.lines import Line
from gradconform.sources.faults.distribution import judge_all
from gradconform.sources.faults.matrix import KillMatrix
from gradconform.sources.faults.outcome import Outcome
from gradconform.sources.faults.subject import SelftestOptions, Subject
from gradconform.text.counts import count
from gradconform.user_input.values import SelectionError, nearest

from .console import kept, on_terminal, terminal, width, write, write_json
from .progress import progress_bar


def selftest(arguments: argparse.Namespace) -> int:
    """Run the contract on every fault and every right variant; return 1 if it confuses any."""
    where = {"device": arguments.device, "dtype": arguments.dtype, "profile": arguments.profile}
    if arguments.exitfirst and not arguments.whole:
        msg = "--exitfirst ends whole runs; add --whole"
        raise SelectionError(msg)
    shard = None if arguments.shard is None else Shard.parse(arguments.shard)
    options = SelftestOptions(**where, whole=arguments.whole, exitfirst=arguments.exitfirst)
    matrix = run_selftest(options, arguments.faults, plugins=arguments.device_plugins or (), shard=shard)
    left = matrix.planned - len(matrix.outcomes)
    code = EXIT_INTERRUPTED if left else EXIT_CONFORMS if matrix.good else EXIT_DOES_NOT
    files: dict[str, tuple[str, str]] = {}
    if arguments.html is not None:
        files[arguments.html] = ("page", kill_page(matrix))
    if arguments.json not in {None, "-"}:
        files[arguments.json] = ("matrix as JSON", json.dumps(kill_values(matrix), indent=2) + "\n")
    notes = kept(files)
    if arguments.json == "-":
        write_json(kill_values(matrix))
    else:
        lines = kill_lines(matrix, width())
        untried = count(left, "fault or right variant", "faults and right variants")
        stopped = f"The self-test was interrupted: {untried} not tried"
        write([*lines[:-1], *([Line(stopped, "warning")] if left else []), *(notes or []), lines[-1]])
    return EXIT_ENVIRONMENT if notes is None else code


def run_selftest(
    options: SelftestOptions, pattern: str | None = None, *, plugins: Sequence[str] = (), shard: Shard | None = None
) -> KillMatrix:
    """Return the kill matrix of the faults that match ``pattern`` and every right variant; a terminal has progress.

    ``shard`` takes a part of them. Raises :class:`~gradconform.user_input.values.SelectionError` for a device, dtype or
    pattern that names nothing.
    """
    choice = one_cell(options.device, options.dtype, plugins)
    ((device, dtype),) = choice.cells
    options = replace(options, device=device, dtype=dtype, choice=choice)
    catalogue = options.catalogue("fault")
    matching = {name: fault for name, fault in catalogue.items() if fnmatchcase(name, pattern or "*")}
    left_out = {n: fault.elsewhere for n, fault in matching.items() if fault.dtypes and dtype not in fault.dtypes}
    chosen = [name for name in matching if name not in left_out]
    if not chosen:
        raise SelectionError(_nothing_chosen(pattern, dtype, left_out, list(catalogue)))
    subjects: list[Subject] = [("fault", name) for name in chosen]
    subjects += [("variant", name) for name in options.catalogue("variant")]
    if shard is not None:
        subjects = subjects[shard.index - 1 :: shard.count]
    complete = len(matching) == len(catalogue) and shard is None
    console = terminal() if on_terminal() else None
    outcomes: list[Outcome] = []
    with progress_bar(console, "starting", len(subjects), name_width=46, counted="survived or accused") as advance:

        def take(outcome: Outcome) -> None:
            outcomes.append(outcome)
            advance(outcome.name, done=True, counts=not outcome.right)

        try:
            outcomes = judge_all(
                options, subjects, workers=os.cpu_count() or 1, on_outcome=take,
                every_check=complete and not options.whole,
            )  # fmt: skip
        except KeyboardInterrupt:
            complete = False
    return KillMatrix(
        options, options.checks, tuple(outcomes), planned=len(subjects), complete=complete,
        left_out=tuple(left_out.items()),
    )  # fmt: skip


def _nothing_chosen(pattern: str | None, dtype: str, left_out: dict[str, str], known: list[str]) -> str:
    if left_out:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        return f"--faults {pattern!r} matches only faults that do not exist in {dtype}: {reasons}"
    return f"--faults {pattern!r} matches no fault; nearest: {nearest(pattern or '', known)[:300]}"
