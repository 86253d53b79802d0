"""The command ``gradconform selftest``: whether the contract finds what it must, on this device."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from gradconform.cli.console import complain, on_terminal, terminal, width, write
from gradconform.cli.json_file import JsonFileError, check_writable, write_json
from gradconform.cli.progress import progress_bar
from gradconform.results import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_ENVIRONMENT, EXIT_USAGE

if TYPE_CHECKING:
    from gradconform.selftest import KillMatrix, Outcome, Question
    from gradconform.selftest.subject import Subject


def selftest(arguments: argparse.Namespace) -> int:
    """Run the contract against every fault and every right variant; 1 where one is not told from the other."""
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.report.kill_matrix import kill_lines  # noqa: PLC0415 (only this command prints it)
    from gradconform.report.kill_matrix_page import kill_page  # noqa: PLC0415 (as above)
    from gradconform.selftest import Question  # noqa: PLC0415 (it imports torch)

    question = Question(device=arguments.device, dtype=arguments.dtype, profile=arguments.profile)
    try:
        path = None if arguments.html is None else check_writable(arguments.html, option="--html")
        matrix = run_selftest(question, arguments.faults)
    except (JsonFileError, SelectionError) as error:
        complain(str(error))
        return EXIT_USAGE
    code = EXIT_CONFORMS if matrix.good else EXIT_DOES_NOT
    if path is not None:
        try:
            write_json(path, kill_page(matrix))
        except OSError as error:
            complain(f"the page could not be written to {path!r}: {error}")
            code = EXIT_ENVIRONMENT
    write(kill_lines(matrix, width()))
    return code


def run_selftest(question: Question, pattern: str | None = None) -> KillMatrix:
    """Judge the faults whose name matches ``pattern``, and every right variant, with progress on a terminal.

    Raises :class:`~gradconform.devices.SelectionError` for a device, dtype or pattern that names nothing.
    """
    from gradconform.contract import CHECKS  # noqa: PLC0415 (it imports torch)
    from gradconform.devices import SelectionError, device_named, dtype_named, nearest  # noqa: PLC0415 (as above)
    from gradconform.plan import make_plan  # noqa: PLC0415 (as above)
    from gradconform.selftest import KillMatrix, judge_all  # noqa: PLC0415 (as above)

    device = str(device_named(question.device))
    dtype = str(dtype_named(question.dtype)).removeprefix("torch.")
    question = replace(question, device=device, dtype=dtype)
    faults = [
        name for name, fault in question.catalogue("fault").items() if fault.dtypes is None or dtype in fault.dtypes
    ]
    chosen = [name for name in faults if fnmatchcase(name, pattern or "*")]
    if not chosen:
        msg = f"--faults {pattern!r} matches no fault; nearest: {nearest(pattern or '', faults)[:300]}"
        raise SelectionError(msg)
    checks = tuple(item.check.id for item in make_plan(CHECKS, profile=question.profile).items)
    subjects: list[Subject] = [("fault", name) for name in chosen]
    subjects += [("variant", name) for name in question.catalogue("variant")]
    with _bar(len(subjects)) as advance:
        outcomes = judge_all(question, subjects, workers=os.cpu_count() or 1, on_outcome=advance)
    return KillMatrix(question, checks, tuple(outcomes), complete=len(chosen) == len(faults))


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Callable[[Outcome], None]]:
    """Show how many subjects are done and how many are not as they should be; nothing where there is no terminal."""
    if not on_terminal():
        yield lambda _: None
        return
    wrong = 0
    with progress_bar(terminal(), name_width=46, counted="survived or accused") as progress:
        task = progress.add_task("starting", total=total, count=0)

        def advance(outcome: Outcome) -> None:
            nonlocal wrong
            wrong += not outcome.right
            progress.update(task, advance=1, description=outcome.name, count=wrong)

        yield advance
