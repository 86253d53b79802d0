"""The command ``gradconform replay`` for a check of a pipeline: run it alone, or write it as a torchrun script."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradconform.devices.prepared import device_named
from gradconform.exits import EXIT_CONFORMS, EXIT_INCOMPLETE, RunRefusedError, RunStoppedError
from gradconform.files.user_files import replace_file
from gradconform.pipeline.cpu_copies import HOST_COPIES
from gradconform.pipeline.placement import backend_for
from gradconform.pipeline.training_step.composition import StepCase, step_cases
from gradconform.process.wait_notices import waiting
from gradconform.results import Report, Result
from gradconform.run.options import OPTIONS
from gradconform.sources.pipeline import STEPS, PipelineOptions
from gradconform.sources.pipeline.checks import look_at, prepare
from gradconform.user_input.values import SelectionError, current_folder_first, nearest

from .parsing import given_options
from .replay_output import show_replay_result, show_replayed_check, show_written_script

#: The options of replay that a pipeline accepts.
_TAKEN = ("device", "device_plugins", "dtype", "seed")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The check to run again, and its result in a report, if there is one."""

    check: str
    target: str
    options: PipelineOptions
    report: Report | None = None
    before: Result | None = None


def replay_pipeline(arguments: argparse.Namespace, report: Report | None = None, before: Result | None = None) -> int:
    """Run one check of a pipeline again; return 0 if it passes, 1 if it fails, 5 if it could not be judged."""
    wanted = _wanted(arguments, report, before)
    with current_folder_first():
        return _run_and_report(wanted) if arguments.script is None else _write_script(wanted, arguments.script)


def _wanted(arguments: argparse.Namespace, report: Report | None, before: Result | None) -> _Wanted:
    """Return the check and the options of its run: the report's options, overridden by the given ones."""
    options = given_options(arguments)
    given: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in options.items()}
    target = given.pop("target", None)
    if wrong := [OPTIONS[name].flag for name in given if name not in _TAKEN]:
        taken = ", ".join(OPTIONS[name].flag for name in _TAKEN)
        msg = f"a pipeline check takes only {taken}; omit {', '.join(wrong)}"
        raise SelectionError(msg)
    if report is None or before is None:
        _case(arguments.what)
        return _Wanted(arguments.what, target, PipelineOptions(profile="full", checks=(arguments.what,), **given))
    try:
        of_report = PipelineOptions.from_json(report.options).alone(before.check)
    except SelectionError as error:
        msg = f"{arguments.what.rpartition('#')[0]}: {error}"
        raise SelectionError(msg) from error
    return _Wanted(before.check, target or str(report.target["text"]), of_report.but(**given), report, before)


def _case(check: str) -> StepCase:
    known = {case.id: case for case in step_cases("full")}
    if check not in known:
        msg = f"unknown training step {check!r}; nearest: {nearest(check, known)[:200]}"
        raise SelectionError(msg)
    return known[check]


def _run_and_report(wanted: _Wanted) -> int:
    prepared = prepare(wanted.options.but(target=wanted.target))
    report, (place,) = prepared.header.report_of({}), prepared.header.places
    reported = [f"{place.device} {place.dtype}", f"seed {wanted.options.seed}", *report.extra]
    show_replayed_check(wanted.check, report, wanted.report, reported)
    found: list[Result] = []
    try:
        with waiting(f"running {place.check}"):
            prepared.run(found.append, on_start=lambda _: None, places=[place])
    except RunStoppedError as error:
        if not found:
            raise RunRefusedError(str(error), EXIT_INCOMPLETE) from error
    return show_replay_result(found[0], wanted.before)


def _write_script(wanted: _Wanted, path: str) -> int:
    if not wanted.check.startswith(STEPS):
        msg = f"--script supports training steps only, and {wanted.check} runs a schedule; omit --script"
        raise SelectionError(msg)
    case, options = _case(wanted.check), wanted.options
    if options.fixed:
        msg = f"--script runs torch as released, but {wanted.check} ran with --fixed; omit --script"
        raise SelectionError(msg)
    from gradconform.replay.step_script import (  # noqa: PLC0415 (it imports a second of torch)
        ReplayedStep,
        refuse_unwritten,
        where_is,
    )

    device_named(options.device, options.device_plugins)
    if backend_for(options.device, 1, share=options.ranks_share_device) == HOST_COPIES:
        msg = f"--script uses torch alone, which has no communication backend for {options.device!r}; omit --script"
        raise SelectionError(msg)
    target_facts = look_at(wanted.target, steps=True)
    refuse_unwritten(case, target_facts["claims"])
    name = " ".join(filter(None, (target_facts["described"]["name"], target_facts["described"]["version"])))
    where = where_is(wanted.target, runtime=target_facts["runtime"])
    replayed = ReplayedStep(
        case=case, name=name, implementation=where, runtime=target_facts["runtime"],
        device=options.device, dtype=options.dtype, seed=options.seed,
    )  # fmt: skip
    replace_file(path, replayed.text(Path(path).name))
    show_written_script(path, case.id, replayed.needs, replayed.command(path))
    return EXIT_CONFORMS
