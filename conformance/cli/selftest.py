"""The command ``gradconform selftest``: whether the contract finds what it must, on this device."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gradconform.cli.console import on_terminal, refuse, terminal, width, write
from gradconform.cli.device_options import add_device_plugin
from gradconform.cli.output_file import OutputFileError, check_writable, hand_over
from gradconform.cli.parsing import profile_named
from gradconform.cli.progress import progress_bar
from gradconform.results import EXIT_CONFORMS, EXIT_DOES_NOT

if TYPE_CHECKING:
    from gradconform.selftest import KillMatrix, Outcome, Question
    from gradconform.selftest.subject import Subject


def add_selftest(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "selftest",
        help="run the contract against known faults and right variants: does it find what it must here?",
        description=(
            "Run the contract against every fault and every right variant that the kit ships, on a device of yours, "
            "and print which check fails which fault. The exit code is 1 where a fault survives or a variant fails."
        ),
    )
    one.set_defaults(command=selftest, parser=one)
    one.add_argument("--device", default="cpu", metavar="DEVICE", help="where it runs (default: cpu)")
    add_device_plugin(one)
    one.add_argument("--dtype", default="float32", metavar="DTYPE", help="as for run (default: float32)")
    one.add_argument(
        "--profile", type=profile_named, default="standard", metavar="PROFILE", help="as for run (default: standard)"
    )
    one.add_argument("--faults", metavar="GLOB", help="only the faults whose name matches (default: all)")
    one.add_argument("--html", metavar="PATH", help="write the matrix there as one HTML page")


def selftest(arguments: argparse.Namespace) -> int:
    """Run the contract against every fault and every right variant; 1 where one is not told from the other."""
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.report.kill_matrix import kill_lines  # noqa: PLC0415 (only this command prints it)
    from gradconform.report.kill_matrix_page import kill_page  # noqa: PLC0415 (as above)
    from gradconform.selftest import Question  # noqa: PLC0415 (it imports torch)

    question = Question(device=arguments.device, dtype=arguments.dtype, profile=arguments.profile)
    try:
        path = None if arguments.html is None else check_writable(arguments.html, option="--html")
        matrix = run_selftest(question, arguments.faults, plugins=arguments.device_plugin or ())
    except (OutputFileError, SelectionError) as error:
        return refuse(error)
    code = EXIT_CONFORMS if matrix.good else EXIT_DOES_NOT
    if path is not None:
        code = hand_over(path, kill_page(matrix), code=code, what="page")
    write(kill_lines(matrix, width()))
    return code


def run_selftest(question: Question, pattern: str | None = None, *, plugins: Sequence[str] = ()) -> KillMatrix:
    """Judge the faults whose name matches ``pattern``, and every right variant, with progress on a terminal.

    Raises :class:`~gradconform.devices.SelectionError` for a device, dtype or pattern that names nothing.
    """
    from gradconform.contract import CHECKS  # noqa: PLC0415 (it imports torch)
    from gradconform.devices import SelectionError  # noqa: PLC0415 (as above)
    from gradconform.devices.naming import one_cell  # noqa: PLC0415 (as above)
    from gradconform.plan import make_plan  # noqa: PLC0415 (as above)
    from gradconform.selftest import KillMatrix, judge_all  # noqa: PLC0415 (as above)

    choice = one_cell(question.device, question.dtype, plugins)
    ((device, dtype),) = choice.cells
    question = replace(question, device=device, dtype=dtype, choice=choice)
    catalogue = question.catalogue("fault")
    matching = {name: fault for name, fault in catalogue.items() if fnmatchcase(name, pattern or "*")}
    left_out = {n: fault.elsewhere for n, fault in matching.items() if fault.dtypes and dtype not in fault.dtypes}
    chosen = [name for name in matching if name not in left_out]
    if not chosen:
        raise SelectionError(_nothing_chosen(pattern, dtype, left_out, list(catalogue)))
    checks = tuple(item.check.id for item in make_plan(CHECKS, profile=question.profile).items)
    subjects: list[Subject] = [("fault", name) for name in chosen]
    subjects += [("variant", name) for name in question.catalogue("variant")]
    with _bar(len(subjects)) as advance:
        outcomes = judge_all(question, subjects, workers=os.cpu_count() or 1, on_outcome=advance)
    whole = len(matching) == len(catalogue)
    return KillMatrix(question, checks, tuple(outcomes), complete=whole, left_out=tuple(left_out.items()))


def _nothing_chosen(pattern: str | None, dtype: str, left_out: dict[str, str], known: list[str]) -> str:
    from gradconform.devices import nearest  # noqa: PLC0415 (it imports torch)

    if left_out:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        return f"--faults {pattern!r} matches only what is no fault in {dtype}: {reasons}"
    return f"--faults {pattern!r} matches no fault; nearest: {nearest(pattern or '', known)[:300]}"


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
