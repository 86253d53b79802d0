"""The command ``gradconform replay``: one check again with all details, or as a script that needs only torch."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from gradconform.contract import checks_of
from gradconform.contract.plan import Item
from gradconform.devices.choice import choose, is_cpu
from gradconform.devices.flags import flags_named
from gradconform.devices.prepared import ready
from gradconform.exits import EXIT_CONFORMS
from gradconform.files.user_files import replace_file
from gradconform.process.time_limit import ends_after
from gradconform.reading.report import read_report
from gradconform.replay.script import Replayed, ScriptError, failing_trial
from gradconform.report.sentences import command_again, options_of
from gradconform.results import Report, Result
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.run.sources import options_selecting
from gradconform.sources.pipeline import STEPS
from gradconform.sources.sharded import SHARDED
from gradconform.target.lookup import refuse_missing_target
from gradconform.user_input.option_help import CHECK_TIMEOUT
from gradconform.user_input.values import SelectionError, current_folder_first, nearest

from .parsing import given_options
from .replay_output import show_replay_result, show_replayed_check, show_written_script
from .replay_pipeline import replay_pipeline
from .replay_sharded import replay_sharded


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The check to run again, and its result in a report, if there is one."""

    check: str
    options: RunOptions
    report: Report | None = None
    before: Result | None = None


def replay(arguments: argparse.Namespace) -> int:
    """Run one check again; return 0 if it passes, 1 if it fails, 5 if it could not be judged."""
    name, hash_sign, which = arguments.what.rpartition("#")
    report = read_report(name) if hash_sign else None
    before = None if report is None else _result(report, which, name)
    if not hash_sign and arguments.target is None:
        arguments.parser.error(_without_target(arguments.what))
    sharded = arguments.what.startswith(SHARDED) if report is None else report.command == SHARDED.rstrip(".")
    if sharded or (arguments.what.startswith(STEPS) if report is None else report.command):
        if arguments.check_timeout is not None:
            msg = "--check-timeout: the launcher of ranks has its own time limit; omit the option"
            raise SelectionError(msg)
        return (replay_sharded if sharded else replay_pipeline)(arguments, report, before)
    if arguments.target is not None:
        with current_folder_first():
            refuse_missing_target(arguments.target)
    wanted = _wanted(arguments, report, before)
    seconds = arguments.check_timeout or (before and before.time_limit) or CHECK_TIMEOUT
    text = f"{wanted.check} did not end within {seconds:g} s; --check-timeout allows more"
    with current_folder_first(), ends_after(seconds, text):
        run = _run_of(wanted)
        if arguments.script is not None:
            return _write_script(run, wanted, arguments.script)
        return _run_and_report(run, wanted)


def _without_target(what: str) -> str:
    """Return the message for a check without a target: a report has one, and this many failures."""
    if not Path(what).is_file():
        return f"a check id requires a TARGET: gradconform replay {what} TARGET"
    failures = len(read_report(what).failures)
    which = f"one of its {failures} failures, such as {what}#1" if failures else f"a check in it: {what}#ID"
    return f"{what} is a report; name {which}"


def _wanted(arguments: argparse.Namespace, report: Report | None, before: Result | None) -> _Wanted:
    """Return the check and the options of its run: the report's options, overridden by the given ones."""
    given = given_options(arguments)
    if report is None or before is None:
        return _Wanted(arguments.what, RunOptions(**{**options_selecting(arguments.what), **given, "profile": "full"}))
    try:
        recorded = options_of(report).but(device=before.device, dtype=before.dtype)
    except ValueError as error:
        msg = f"{arguments.what.rpartition('#')[0]}: {error}"
        raise SelectionError(msg) from error
    values = {"target": str(report.target["text"]), **options_selecting(before.check), **given}
    return _Wanted(before.check, recorded.but(**values), report, before)


def _result(report: Report, which: str, name: str) -> Result:
    """Return the failure with that number, counted from 1, or the first result of a check."""
    failures = report.failures
    if which.isdigit():
        if not 1 <= int(which) <= len(failures):
            numbers = f"a number from 1 to {len(failures)}" if failures else "a check id, as the report has no failures"
            msg = f"{name}: expected {numbers}, got {which}"
            raise SelectionError(msg)
        return failures[int(which) - 1]
    found = [result for result in (*failures, *report.results) if result.check == which]
    if not found:
        near = nearest(which, {result.check for result in report})[:200]
        msg = f"{name} has no result for {which!r}; nearest: {near}"
        raise SelectionError(msg)
    return found[0]


def _run_of(wanted: _Wanted) -> Run:
    options = wanted.options
    # Before the checks are made, which runs a backward: torch must know a device before the first backward.
    flags = flags_named(options.flags)
    choice = choose(options.device, options.dtype, plugins=options.device_plugins, flags=flags)
    ready(choice, flags)
    known = checks_of(wanted.options.contract)
    if wanted.check not in known and not (options.stage or any(options_selecting(wanted.check).values())):
        near = nearest(wanted.check, known)[:200]
        msg = f"contract {wanted.options.contract} has no check {wanted.check!r}; nearest: {near}"
        raise SelectionError(msg)
    # Options that select checks or process results do not apply to a single named check.
    alone = {"checks": wanted.check, "exclude_checks": (), "skip_operations": (), "shard": None}
    run = Run(wanted.options.but(**alone, schedule=(), waivers=None), choice=choice)
    if len(run.plan.items) > 1:
        msg = f"expected one device and one dtype, got {' and '.join(item.name for item in run.plan.items)}"
        raise SelectionError(msg)
    return run


def _run_and_report(run: Run, wanted: _Wanted) -> int:
    (item,), others = run.plan.items, wanted.options.but(device="cpu", dtype="float32", seed=None).words("results")
    reported = [f"{item.device} {item.dtype}", f"seed {run.options.seed}", *([shlex.join(others)] if others else [])]
    show_replayed_check(wanted.check, run.empty_report(), wanted.report, reported)
    report = run.run()
    (result,) = report.results
    again = command_again(report, result) if _replayed(run, item).has_script and result.kind != "device" else None
    return show_replay_result(result, wanted.before, script=f"{again} --script defect.py" if again else None)


def _replayed(run: Run, item: Item) -> Replayed:
    options = run.options
    given = item.check, run.target, item.dtype, item.device, options.seed, options.contract
    return Replayed(*given, device_plugins=options.device_plugins)


def _write_script(run: Run, wanted: _Wanted, path: str) -> int:
    (item,) = run.plan.items
    if not is_cpu(item.device) and run.run_item(item).kind == "device":
        msg = (
            f"--script: {item.device} is wrong in {wanted.check}, not the implementation: a script would compare it "
            "with plain autograd there, which is as wrong; omit --script to print the wrong operation"
        )
        raise ScriptError(msg)
    replayed = replace(_replayed(run, item), check=failing_trial(run, item), place=Path(path).parent)
    with current_folder_first():
        replace_file(path, replayed.shortest())
    show_written_script(path, wanted.check, replayed.needs, shlex.join(["python", path]))
    return EXIT_CONFORMS
