"""The command ``gradconform schedule-text``: what works on schedules before they run, judged without processes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gradconform.cli.beside import judge_beside
from gradconform.cli.console import refuse
from gradconform.cli.current_folder import current_folder_first
from gradconform.cli.output_file import OutputFileError, check_writable
from gradconform.cli.parsing import SEVERAL

if TYPE_CHECKING:
    from gradconform.fixtures.schedules import Schedule

_EXAMPLES = """\
examples:
  gradconform schedule-text torch
  gradconform schedule-text torch --schedule mine.csv
  gradconform schedule-text mypackage.schedules:Text --schedule ZBVZeroBubble-2x2x3
"""


def add_schedule_text(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "schedule-text",
        help="judge how a runtime parses, validates, places, merges and lowers schedules",
        description=(
            "Judge what a pipeline runtime does with schedules before anything runs: parse and print actions, refuse "
            "what is illegal, place stages on ranks, merge I and W, put in communication and sharding."
        ),
        epilog=_EXAMPLES,
    )
    one.set_defaults(command=schedule_text, parser=one)
    one.add_argument(
        "target", metavar="TARGET", help="torch, or package.module:object with the methods of ScheduleText"
    )
    one.add_argument(
        "--schedule",
        **SEVERAL,
        metavar="NAME",
        help="a recorded schedule, or the path of a CSV file in torch's format; may be given several times "
        "(default: all recorded ones)",
    )
    one.add_argument("--json", metavar="PATH", help="write the report there as JSON")


def schedule_text(arguments: argparse.Namespace) -> int:
    """Judge a runtime's work on schedules; return the exit code of the verdict."""
    import gradconform.session  # noqa: F401, PLC0415 (before the folder is, so that nothing in it can stand for torch)
    from gradconform.fixtures.schedules import ScheduleError  # noqa: PLC0415 (only schedules need it)
    from gradconform.schedule_text.subject import schedule_text_named  # noqa: PLC0415 (it imports torch)
    from gradconform.targets import TargetError  # noqa: PLC0415 (it imports torch)

    try:
        path = None if arguments.json is None else check_writable(arguments.json)
        schedules = _schedules(arguments.schedule)
        with current_folder_first():
            subject = schedule_text_named(arguments.target)
    except (OutputFileError, ScheduleError, TargetError) as error:
        return refuse(error)
    from gradconform.schedule_text.checks import checks_of  # noqa: PLC0415 (it imports torch)

    return judge_beside(
        subject,
        checks_of(schedules),
        text=arguments.target,
        what=tuple(f"{one.name}: {one.size}" for one in schedules),
        dtype="text",
        path=path,
    )


def _schedules(given: list[str] | None) -> list[Schedule]:
    """Return the schedules that are named; raise ``ScheduleError`` for a name or a file that gives none."""
    from gradconform.devices import nearest  # noqa: PLC0415 (it imports torch)
    from gradconform.fixtures.schedules import RECORDED, ScheduleError, read_csv, recorded  # noqa: PLC0415 (as above)

    found = []
    for name in given or RECORDED:
        if name.endswith(".csv"):
            found.append(read_csv(name))
        elif name in RECORDED:
            found.append(recorded(name))
        else:
            msg = f"{name!r} is no recorded schedule and no CSV file; nearest: {nearest(name, RECORDED)}"
            raise ScheduleError(msg)
    return found
