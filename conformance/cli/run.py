"""The command ``gradconform run``."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradconform.devices.choice import choose, refuse_crowd
from gradconform.devices.flags import flags_named
from gradconform.exits import EXIT_CONFORMS, EXIT_INTERRUPTED
from gradconform.files.records import Header, RecordsError, differing
from gradconform.process.imports import imports_uncollected
from gradconform.reading.record_file import RecordedRun
from gradconform.report.checks import plan_lines
from gradconform.report.lines import wrapped
from gradconform.run.execution import Execution, OnResult, OnStart, RecordFile
from gradconform.run.options import OPTIONS, RunOptions
from gradconform.run.planning import planning_within
from gradconform.run.sources import SOURCES
from gradconform.run.time_budget import TimeBudget
from gradconform.target.lookup import refuse_missing_target
from gradconform.user_input.option import OptionValues
from gradconform.user_input.values import current_folder_first
from gradconform.waivers.waiver import DEFAULT_FILE, read_waivers
from gradconform.workers.isolated_run import IsolatedRun

from .arguments import RUN_DEFAULTS
from .console import complain, keep_output_for_the_report, refuse_unwritable_outputs, width, write
from .last_failed import last_failed, remember
from .option_sources import fill
from .parsing import given_options
from .progress import Stop, first_part, perform
from .report_output import ReportOutput

if TYPE_CHECKING:
    from gradconform.results import Place, Report
    from gradconform.run.forecast import Forecast


def run(arguments: argparse.Namespace) -> int:
    """Run the contract against a target; return the exit code of the verdict."""
    _read_other_sources(arguments)
    if arguments.target is None and arguments.resume is None:
        arguments.parser.error("the following arguments are required: TARGET")
    if arguments.last_failed:
        _choose_last_failed(arguments)
    if arguments.list:
        return _list_plan(arguments)
    with records(arguments) as file:
        judged = judge(arguments, file, RUN)
    remember(judged.report)
    return judged.code


def _choose_last_failed(arguments: argparse.Namespace) -> None:
    """Select the checks that failed in the last run, and report if there are none."""
    if arguments.resume is not None:
        arguments.parser.error("--resume runs the remaining checks of its run; omit --last-failed")
    found = last_failed(options_of(arguments, RunOptions).to_json(), arguments.checks or ())
    if found:
        arguments.checks = found
    else:
        complain(
            f"no failed check of {arguments.target} is recorded for this folder; --last-failed runs all selected checks"
        )


def _read_other_sources(arguments: argparse.Namespace) -> None:
    """Fill unset options from the environment and the settings file, and report that.

    A resumed run keeps the options with which it began.
    """
    resumed = arguments.resume is not None
    named = {name: getattr(arguments, name) for name in OPTIONS}
    reported = fill(arguments, arguments.parser, Path(), os.environ)
    if reported:
        refuse_unwritable_outputs(arguments)
        keep_output_for_the_report(arguments)
    if resumed:
        vars(arguments).update(named)
    elif reported and not arguments.list and ReportOutput.of(arguments).shows_progress:
        write([line for one in reported for line in wrapped(one, width(), hanging=4)])
    begin(arguments)


def begin(arguments: argparse.Namespace) -> None:
    """Set all remaining options to the defaults of a run."""
    for name, value in RUN_DEFAULTS.items():
        if getattr(arguments, name, None) is None:
            setattr(arguments, name, value)


def records(arguments: argparse.Namespace) -> contextlib.AbstractContextManager[RecordFile | None]:
    """Open the run's record file, if it has one."""
    if arguments.ndjson is None and arguments.resume is None:
        return contextlib.nullcontext()
    return contextlib.closing(RecordFile(arguments.resume or arguments.ndjson, resume=arguments.resume is not None))


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome of a run: its report, the exit code of its verdict, and the places of all planned checks."""

    report: Report
    code: int
    planned: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Way:
    """What a command that judges has of its own: the class of its ``options``, and how it prepares a run.

    ``execution`` takes the arguments, the options, and the measurements for the plan of a resumed run. ``area_of``
    returns the area of a check, whose results are summed up in a line; an empty one is not shown. ``forecast`` makes
    the expected time of the checks that are left, with a number of workers.
    """

    options: type[OptionValues]
    execution: Callable[[argparse.Namespace, Any, Mapping[str, Any] | None], Execution]
    area_of: Callable[[str], str] = first_part
    forecast: type[Forecast] | None = None


def judge(
    arguments: argparse.Namespace,
    file: RecordFile | None,
    way: Way,
    *,
    order: Callable[[Place], int] | None = None,
) -> Judged:
    """Run the checks that the arguments select, and report them.

    The places to which ``order`` gives the lowest numbers run first.
    """
    found = None if file is None else file.found
    options = options_of(arguments, way.options) if found is None else resumed_options(arguments, found, way.options)
    measured = None if found is None else found.header.measured
    with contextlib.closing(way.execution(arguments, options, measured)) as execution:
        if found is not None:
            refuse_another_run(found, execution.header)
        if file is not None:
            file.begin(execution.header)
        output = ReportOutput.of(arguments)
        shown = output.shows_progress
        forecast = None if way.forecast is None else partial(way.forecast, workers=arguments.workers)
        report, stop = perform(
            execution, file, order, limit=arguments.maxfail, shown=shown, area_of=way.area_of, forecast=forecast
        )
        planned = execution.header.places
    if stop is None:
        return Judged(report, output.conclude(report), planned)
    reason = stop.reason.partition("\n")[0] + _how_to_go_on(arguments, file, stop)
    code = output.conclude(report, code=stop.exit_code, stopped=reason)
    if "\n" in stop.reason:
        complain(stop.reason)
    return Judged(report, code, planned)


def _how_to_go_on(arguments: argparse.Namespace, file: RecordFile | None, stop: Stop) -> str:
    """Return how to run the rest of a run that ended early."""
    if file is not None:
        return f"; continue with {shlex.join([*arguments.parser.prog.split(), '--resume', file.path])}"
    return "; with --ndjson FILE, a run can be continued later" if stop.exit_code == EXIT_INTERRUPTED else ""


def execution(
    arguments: argparse.Namespace, options: RunOptions, measured: Mapping[str, Any] | None, *, of_device: bool = False
) -> Execution:
    """Return the run, ready to start; ``measured`` has a resumed run's measurements for its plan.

    A run ``of_device`` probes devices even if an earlier run kept its probe, and measures their pace.
    """
    budget = TimeBudget(arguments.time_budget)
    with current_folder_first():
        refuse_missing_target(str(options.target))  # before anything imports torch
    if not arguments.isolation:
        return InProcess(options, budget, measured, paced=of_device)
    with current_folder_first():
        flags = flags_named(options.flags)
        choice = choose(options.device, options.dtype, plugins=options.device_plugins, flags=flags, fresh=of_device)
    refuse_crowd(choice, arguments.workers)
    return IsolatedRun(
        {"options": options.to_json(), "choice": choice.to_dict()},
        workers=arguments.workers,
        check_timeout=arguments.check_timeout,
        start_timeout=arguments.start_timeout,
        max_lost_time=arguments.max_lost_time,
        budget=budget,
        measured=measured,
        paced=of_device,
    )


RUN = Way(RunOptions, execution)


def _list_plan(arguments: argparse.Namespace) -> int:
    if arguments.ndjson is not None or arguments.resume is not None:
        arguments.parser.error("--list runs no check and writes no records; omit --ndjson and --resume")
    with contextlib.closing(InProcess(options_of(arguments, RunOptions))) as listed:
        run = listed.planned
        write(plan_lines(run.plan, run.target, run.empty_report().counted, width()))
    return EXIT_CONFORMS


def options_of(arguments: argparse.Namespace, values: type[OptionValues]) -> Any:
    """Return the options of a command from the arguments.

    Raises :class:`~gradconform.waivers.waiver.WaiverError` for a waiver file that cannot be read.
    """
    given = given_options(arguments, values.OPTIONS)
    if "waivers" not in given and not getattr(arguments, "no_waivers", True) and Path(DEFAULT_FILE).is_file():
        given["waivers"] = DEFAULT_FILE
    if "waivers" in given:
        read_waivers(given["waivers"])  # report errors before importing torch, as far as possible without the checks
    options = values(**given)
    if values is RunOptions:
        for source in SOURCES.values():
            source.refuse(options)
    return options


def resumed_options(arguments: argparse.Namespace, found: RecordedRun, values: type[OptionValues]) -> Any:
    """Return the options of a resumed run; options on the command line must have the same values.

    Raises :class:`~gradconform.files.records.RecordsError` that names the differences.
    """
    recorded = _recorded(found, values)
    none = {"waivers": None} if getattr(arguments, "no_waivers", False) else {}
    given = {**given_options(arguments, values.OPTIONS), **none}
    before, now = recorded.to_json(), recorded.but(**given).to_json()
    for name in given:
        if before[name] != now[name]:
            both = f"{before[name]!r} in the file and {now[name]!r} here"
            msg = f"--resume {found.path}: {values.OPTIONS[name].flag} is {both}; omit the option, or start a new run"
            raise RecordsError(msg)
    return recorded


def _recorded(found: RecordedRun, values: type[OptionValues]) -> OptionValues:
    recorded = found.header.report.get("options")
    if not isinstance(recorded, dict) or recorded.get("target") is None:
        msg = f"cannot continue {str(found.path)!r}: it records no target that a command could name; start a new run"
        raise RecordsError(msg)
    try:
        return values.from_json(recorded)
    except ValueError as error:
        msg = f"--resume {found.path}: {error}"
        raise RecordsError(msg) from error


def refuse_another_run(found: RecordedRun, header: Header) -> None:
    """Raise :class:`~gradconform.files.records.RecordsError` if ``header`` is not that of the resumed run."""
    before, now = ({**one.fixed, "checks": len(one.places)} for one in (found.header, header))
    reported = [
        f"{name} is {was!r} in the file and {here!r} here" for name, (was, here) in differing(before, now).items()
    ]
    reported += _changed_files(found.header.files, header.files)
    if not reported and found.header.places != header.places:
        reported = ["the checks differ"]
    if reported:
        msg = f"--resume {found.path}: this run differs from the recorded one: {'; '.join(reported)}. Start a new run"
        raise RecordsError(msg)


def _changed_files(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the files that have changed since the run began; none if its records name no files."""
    changed = sorted(name for name in {**before, **now} if before and before.get(name) != now.get(name))
    return [
        f"{name} {'has changed' if name in before and name in now else 'is loaded in only one run'}" for name in changed
    ]


class InProcess:
    """A run that is ready to start in this process; ``header`` describes it."""

    def __init__(
        self,
        options: RunOptions,
        budget: TimeBudget | None = None,
        measured: Mapping[str, Any] | None = None,
        *,
        paced: bool = False,
    ) -> None:
        """Create the run that ``options`` describe; when ``budget`` is spent, it begins no further check.

        Measurements for the plan in ``measured``, from an earlier part of the run, are not repeated. If the run is
        ``paced``, its header has the pace of the devices.
        """
        self._budget = budget or TimeBudget(None)
        # Import this before the current folder is on the path, so that no file in it can replace torch.
        with imports_uncollected():
            from gradconform.run.run import Run  # noqa: PLC0415 (it imports torch; elsewhere, other processes do)

        self._folder = contextlib.ExitStack()
        with contextlib.ExitStack() as opening:
            opening.enter_context(current_folder_first())
            opening.enter_context(planning_within(self._budget))
            self.planned = Run(options, measured=measured)
            self._folder = opening.pop_all()
        self.header = self.planned.header(paced=paced)

    def run(self, on_result: OnResult, *, on_start: OnStart, places: Iterable[Place]) -> None:
        """Run the items at ``places``; raise :class:`~gradconform.exits.RunStoppedError` when the time is over."""
        several = list(places)
        self.planned.run(on_result, on_start=on_start, places=self._budget.within(several))
        self._budget.raise_if_left(len(several))

    def close(self) -> None:
        """Remove the current folder from the import path."""
        self._folder.close()
