"""The command ``gradconform replay``: one check again, with all it says, or as a script that needs only torch."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass

from gradconform.contract import checks_of
from gradconform.exits import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_INCOMPLETE
from gradconform.naming import SelectionError, current_folder_first, nearest
from gradconform.reading.report import read_report
from gradconform.replay.script import Replayed, failing_trial
from gradconform.report.lines import Line, wrapped
from gradconform.report.sentences import options_of
from gradconform.results import Report, Result
from gradconform.run.options import RunOptions
from gradconform.run.run import Run
from gradconform.version import KIT_VERSION

from .console import replace_file, width, write
from .parsing import given_options


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is run again, and what a report said of it, if there is one."""

    check: str
    options: RunOptions
    report: Report | None = None
    before: Result | None = None


def replay(arguments: argparse.Namespace) -> int:
    """Run one check again; return 0 where it passes, 1 where it fails, 5 where it could not be judged."""
    wanted = _wanted(arguments)
    with current_folder_first():
        run = _run_of(wanted)
        if arguments.script is not None:
            return _write_script(run, wanted, arguments.script)
        return _told(run, wanted)


def _wanted(arguments: argparse.Namespace) -> _Wanted:
    """Return the check and the options of its run: those of the report that holds it, with what is given in place."""
    given = given_options(arguments)
    name, hash_sign, which = arguments.what.rpartition("#")
    if not hash_sign:
        if arguments.target is None:
            arguments.parser.error("a check id needs the TARGET to run it on")
        return _Wanted(arguments.what, RunOptions(**{**given, "profile": "full"}))
    report = read_report(name)
    before = _result(report, which, name)
    try:
        recorded = options_of(report).but(device=before.device, dtype=before.dtype)
    except ValueError as error:
        msg = f"{name}: {error}"
        raise SelectionError(msg) from error
    return _Wanted(before.check, recorded.but(**{"target": str(report.target["text"]), **given}), report, before)


def _result(report: Report, which: str, name: str) -> Result:
    """Return the failure with that number, counted from 1, or the first result of a check."""
    failures = report.failures
    if which.isdigit():
        if not 1 <= int(which) <= len(failures):
            msg = f"{name} has {len(failures)} failures, no number {which}; expected one from 1, or a check id"
            raise SelectionError(msg)
        return failures[int(which) - 1]
    found = [result for result in (*failures, *report.results) if result.check == which]
    if not found:
        msg = f"{name} has no result of {which!r}; nearest: {nearest(which, {result.check for result in report})[:200]}"
        raise SelectionError(msg)
    return found[0]


def _run_of(wanted: _Wanted) -> Run:
    known = checks_of(wanted.options.contract)
    if wanted.check not in known:
        near = nearest(wanted.check, known)[:200]
        msg = f"{wanted.check!r} is no check of contract {wanted.options.contract}; nearest: {near}"
        raise SelectionError(msg)
    # What chooses checks, and what is made of their results, is not asked of one that is chosen by hand.
    run = Run(wanted.options.but(checks=wanted.check, exclude_checks=(), shard=None, schedule=(), waivers=None))
    if len(run.plan.items) > 1:
        msg = f"{' and '.join(item.name for item in run.plan.items)}: name one device and one dtype"
        raise SelectionError(msg)
    return run


def _told(run: Run, wanted: _Wanted) -> int:
    target = run.target
    text = f"gradconform {KIT_VERSION} replays {wanted.check} on {target.name} {target.version or ''}".rstrip()
    (item,), others = run.plan.items, wanted.options.but(device="cpu", dtype="float32", seed=None).words("results")
    told = [f"{item.device} {item.dtype}", f"seed {run.options.seed}", *([shlex.join(others)] if others else [])]
    write([*wrapped(f"{text}: {', '.join(told)}", width(), role="heading")])
    write([line for difference in _differences(run, wanted) for line in wrapped(difference, width(), role="warning")])
    (result,) = run.run().results
    numbers = "" if result.headroom is None else f"; the largest error is {result.headroom:.3g} of its bound"
    write(
        [
            *wrapped(result.requirement, width()),
            *(Line(f"  {line}") for line in result.message.splitlines()),
            *wrapped(_compared(result, wanted), width()),
            Line(f"{result.check}: {result.status}{numbers}", "good" if result.status == "passed" else "bad"),
        ]
    )
    codes = {"passed": EXIT_CONFORMS, "failed": EXIT_DOES_NOT}
    return codes.get(result.status, EXIT_INCOMPLETE)


def _differences(run: Run, wanted: _Wanted) -> list[str]:
    """Return what is not as it was when the report was written, so that other numbers surprise nobody."""
    if wanted.report is None:
        return []
    environment = run.empty_report().environment
    found = []
    if wanted.report.target.get("sha256") != run.target.sha256:
        found.append("the target's file is not the one that the report was written of")
    for name in ("torch", "platform"):
        then, now = wanted.report.environment.get(name), environment.get(name)
        if then != now:
            found.append(f"{name} was {then}, now it is {now}")
    return found


def _compared(result: Result, wanted: _Wanted) -> str:
    if wanted.before is None:
        return ""
    same = (result.status, result.message, result.headroom) == (
        wanted.before.status,
        wanted.before.message,
        wanted.before.headroom,
    )
    return "the same as in the report, number for number" if same else f"in the report: {wanted.before.status}"


def _write_script(run: Run, wanted: _Wanted, path: str) -> int:
    (item,) = run.plan.items
    options, trial = run.options, failing_trial(run, item)
    replayed = Replayed(trial, run.target, item.dtype, item.device, options.seed, options.contract)
    replace_file(path, replayed.text())
    write([Line(f"{path} runs {wanted.check} with torch and the implementation alone: python {path}")])
    return EXIT_CONFORMS
