"""The command ``gradconform run``."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gradconform.cli.asked import options_of, refuse_another_run, resumed_options
from gradconform.cli.console import complain, refuse, width, write
from gradconform.cli.current_folder import current_folder_first
from gradconform.cli.device_options import add_devices
from gradconform.cli.output_file import OutputFileError, check_writable, hand_over
from gradconform.cli.parsing import (
    EXAMPLES,
    EXIT_CODES,
    SEVERAL,
    TARGETS,
    add_selection,
    count_given,
    seconds_given,
    seed_given,
    shard_given,
)
from gradconform.cli.waivers import add_waivers
from gradconform.defaults import DEFAULT_SEED
from gradconform.records import RecordsError
from gradconform.results import EXIT_CONFORMS

if TYPE_CHECKING:
    from gradconform.execution import Execution
    from gradconform.record_file import RecordFile

#: How long one check may take, in seconds; one of the contract takes milliseconds.
CHECK_TIMEOUT = 120.0


def add_run(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    names = sorted(entry.name for entry in importlib.metadata.entry_points(group="gradconform.adapters"))
    # Each line goes under the first one's names, and within 80 columns.
    targets = TARGETS.format(registered=textwrap.fill(", ".join(names), 54).replace("\n", "\n" + " " * 26))
    one = found.add_parser(
        "run",
        help="run the contract against a target and give a verdict",
        description="Run the contract against a target, tell what failed and why, and give a verdict.",
        epilog=f"{targets}\n{EXAMPLES}\n{EXIT_CODES}",
    )
    one.set_defaults(command=run, parser=one)
    one.add_argument("target", metavar="TARGET", nargs="?", help="what is judged, see below")
    add_devices(one)
    add_selection(one, "standard")
    one.add_argument("--exclude-checks", **SEVERAL, metavar="GLOB", help="leave out the checks whose id matches")
    one.add_argument(
        "--seed",
        type=seed_given,
        metavar="N",
        help=f"what all values are drawn from (default: {DEFAULT_SEED})",
    )
    one.add_argument("--strict", action="store_true", help="let a failed SHOULD decide the verdict as well")
    one.add_argument(
        "--probe", action="store_true", help="try also what the target does not claim; profile full always does"
    )
    one.add_argument(
        "--require-device-execution",
        type=float,
        metavar="PERCENT",
        help="fail a check of which less than PERCENT of the operations ran on the device, 100 for no fall back at all",
    )
    one.add_argument(
        "--schedule",
        action="append",
        metavar="FILE.csv",
        help="judge the pipeline schedule of a CSV file in torch's format, a row per rank, in place of the contract; "
        "may be given several times",
    )
    one.add_argument(
        "--shard",
        type=shard_given,
        metavar="I/N",
        help="run part I of N of the plan, such as 1/4; 'gradconform merge' puts the N reports together",
    )
    add_waivers(one)
    one.set_defaults(profile=None)  # so that one that is named can be told from one that is not
    _add_records(one)
    _add_isolation(one)
    only = one.add_mutually_exclusive_group()
    only.add_argument("--json", metavar="PATH", help="write the report there as JSON")
    only.add_argument("--list", action="store_true", help="print what would run, and run nothing")


def _add_records(one: argparse.ArgumentParser) -> None:
    kept = one.add_mutually_exclusive_group()
    kept.add_argument(
        "--ndjson", metavar="PATH", help="append each result there as it comes, one JSON record a line (NDJSON)"
    )
    kept.add_argument(
        "--resume", metavar="PATH", help="go on with the run that --ndjson kept there: what has no result yet is run"
    )


def _add_isolation(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--no-isolation",
        dest="isolation",
        action="store_false",
        help="run the checks in this process: a crash or hang of the target is one of the run",
    )
    one.add_argument(
        "--check-timeout",
        type=seconds_given,
        default=CHECK_TIMEOUT,
        metavar="SECONDS",
        help=f"what one check may take; one that takes longer has hung (default: {CHECK_TIMEOUT:g})",
    )
    one.add_argument(
        "-n",
        "--workers",
        type=count_given,
        default=1,
        metavar="N",
        help="how many processes share the checks (default: 1)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the contract against a target; return the exit code of the verdict."""
    if arguments.target is None and arguments.resume is None:
        arguments.parser.error("the following arguments are required: TARGET")
    if arguments.list:
        return _list_plan(arguments)
    try:
        path = check_writable(arguments.json) if arguments.json is not None else None
        with contextlib.closing(_records(arguments)) if _keeps(arguments) else contextlib.nullcontext() as file:
            return _judge(arguments, file, path)
    except (OutputFileError, RecordsError) as error:
        return refuse(error)


def _keeps(arguments: argparse.Namespace) -> bool:
    return arguments.ndjson is not None or arguments.resume is not None


def _records(arguments: argparse.Namespace) -> RecordFile:
    from gradconform.record_file import RecordFile  # noqa: PLC0415 (it needs a system with file locks)

    return RecordFile(arguments.resume or arguments.ndjson, resume=arguments.resume is not None)


def _judge(arguments: argparse.Namespace, file: RecordFile | None, path: str | None) -> int:
    found = None if file is None else file.found
    options = options_of(arguments) if found is None else resumed_options(arguments, found)
    with contextlib.closing(_execution(arguments, options)) as execution:
        if found is not None:
            refuse_another_run(found, execution.header)
        if file is not None:
            file.begin(execution.header)
        return _report(execution, file, path)


def _execution(arguments: argparse.Namespace, options: Mapping[str, Any]) -> Execution:
    if not arguments.isolation:
        from gradconform.cli.in_process import InProcess  # noqa: PLC0415 (only a run without isolation needs it)

        return InProcess(options)
    from gradconform.devices.choice import choose  # noqa: PLC0415 (a run of this command alone chooses here)
    from gradconform.devices.sharing import refuse_crowd  # noqa: PLC0415 (as above)
    from gradconform.isolation.supervisor import IsolatedRun  # noqa: PLC0415 (only a run starts processes)

    with current_folder_first():
        choice = choose(options["device"], options["dtype"], plugins=options["device_plugins"])
    refuse_crowd(choice, arguments.workers)
    return IsolatedRun(
        {**options, "choice": choice.to_dict()}, workers=arguments.workers, check_timeout=arguments.check_timeout
    )


def _report(execution: Execution, file: RecordFile | None, path: str | None) -> int:
    from gradconform.cli.progress import perform  # noqa: PLC0415 (only a run shows progress)
    from gradconform.report.terminal import closing  # noqa: PLC0415 (only a run reports)

    report, stop = perform(execution, file)
    code = report.exit_code if stop is None or stop.exit_code is None else stop.exit_code
    if path is not None:
        # Before the report is printed: a reader who goes away costs no file.
        code = hand_over(path, report.to_json(), code=code)
    write(closing(report, width(), None if stop is None else stop.reason.partition("\n")[0]))
    if stop is not None and "\n" in stop.reason:
        complain(stop.reason)
    return code


def _list_plan(arguments: argparse.Namespace) -> int:
    if _keeps(arguments):
        arguments.parser.error("--list runs nothing, so there is nothing to keep; leave out --ndjson and --resume")
    import gradconform.session  # noqa: PLC0415 (before the folder is, so that nothing in it can stand for torch)
    from gradconform.report.listing import plan_lines  # noqa: PLC0415 (it imports torch)

    with current_folder_first():
        session = gradconform.session.Session(**options_of(arguments))
    write(plan_lines(session.plan, session.target, session.empty_report().scope, width()))
    return EXIT_CONFORMS
