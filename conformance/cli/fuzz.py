"""The command ``gradconform fuzz``."""

from __future__ import annotations

import argparse
import shlex
import time
from dataclasses import replace

from gradconform.devices.dtypes import dtype_named
from gradconform.devices.prepared import device_named
from gradconform.exits import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_INCOMPLETE, EXIT_INTERRUPTED
from gradconform.fixtures.random_stages import Order
from gradconform.fuzz.campaign import Campaign, run_campaign
from gradconform.fuzz.hunt import Defect, Hunt, from_blob, key_of
from gradconform.report.fuzzing import defect_lines, summary_line
from gradconform.report.lines import Line, wrapped
from gradconform.run.runner import AdapterError, Runner
from gradconform.target.lookup import refuse_missing_target
from gradconform.target.resolve import resolve
from gradconform.trial.trial import Trial
from gradconform.user_input.values import SelectionError, current_folder_first
from gradconform.version import KIT_VERSION

from .console import complain, on_terminal, terminal, width, write
from .progress import progress_bar


def fuzz(arguments: argparse.Namespace) -> int:
    """Try random trials on a target; return 1 if a MUST failed."""
    with current_folder_first():
        refuse_missing_target(arguments.target)
        trial = None if arguments.reproduce is None else from_blob(arguments.reproduce)
        runner = _runner(arguments)
        _refuse_nothing_claimed(runner)
        try:
            return _hunt(runner, arguments) if trial is None else _reproduce(runner, trial, arguments)
        except AdapterError as error:
            complain(f"the adapter does not work, so the target cannot be judged: {error}")
            return EXIT_DOES_NOT


def _runner(arguments: argparse.Namespace) -> Runner:
    device = device_named(arguments.device, arguments.device_plugins or ())
    dtype = dtype_named(arguments.dtype)
    return Runner(resolve(arguments.target), device=device, dtype=dtype, seed=arguments.seed)


def _refuse_nothing_claimed(runner: Runner) -> None:
    unclaimed = [*([] if Order.ways(runner.target.capabilities) else ["full or split"]), *runner.place_unmet]
    if unclaimed:
        msg = f"{runner.target.name} does not claim {', '.join(unclaimed)}; fuzz tries only what a target claims"
        raise SelectionError(msg)


def _hunt(runner: Runner, arguments: argparse.Namespace) -> int:
    _open(runner, arguments)
    campaign, interrupted = _campaign(runner, arguments)
    if interrupted:
        write([Line("interrupted; a run with the same --seed tries the same examples again", "warning")])
    write([summary_line(campaign, arguments.max_examples)])
    if interrupted:
        return EXIT_INTERRUPTED
    if any(defect.level == "MUST" for defect in campaign.defects):
        return EXIT_DOES_NOT
    return EXIT_CONFORMS if campaign.trials > campaign.unjudged else EXIT_INCOMPLETE


def _campaign(runner: Runner, arguments: argparse.Namespace) -> tuple[Campaign, bool]:
    """Return the campaign, with each defect printed when it was found, and whether it was interrupted."""
    latest = Campaign()
    max_examples, reported, done, failing = arguments.max_examples, 0, 0, 0
    console = terminal() if on_terminal() else None
    with progress_bar(console, "random examples", max_examples, name_width=16, counted="failures") as show:

        def advance(campaign: Campaign) -> None:
            nonlocal latest, reported, done, failing
            latest = replace(campaign, defects=list(campaign.defects))
            for defect in campaign.defects[reported:]:
                reported += 1
                write(defect_lines(reported, defect, width(), _command(arguments)), console)
            show(done=campaign.examples - done, counts=campaign.failing - failing)
            done, failing = campaign.examples, campaign.failing

        try:
            return run_campaign(
                runner,
                max_examples=max_examples,
                time_budget=arguments.time_budget,
                seed=arguments.seed,
                on_round=advance,
            ), False
        except KeyboardInterrupt:
            return latest, True


def _reproduce(runner: Runner, trial: Trial, arguments: argparse.Namespace) -> int:
    _open(runner, arguments)
    started = time.monotonic()
    hunt = Hunt(runner)
    findings = hunt.judge(trial)
    defects = [Defect(key_of(findings[0]), trial, tuple(findings))] if findings else []
    for defect in defects:
        write(defect_lines(1, defect, width(), _command(arguments)))
    seconds = time.monotonic() - started
    write([summary_line(Campaign(1, len(defects), 1, seconds=seconds, defects=defects), 1)])
    if hunt.unjudged:
        return EXIT_INCOMPLETE
    return EXIT_DOES_NOT if any(defect.level == "MUST" for defect in defects) else EXIT_CONFORMS


def _open(runner: Runner, arguments: argparse.Namespace) -> None:
    name = f"{runner.target.name} {runner.target.version or ''}".strip()
    text = f"gradconform {KIT_VERSION} fuzzes {name} on {arguments.device} {arguments.dtype}, seed {arguments.seed}"
    write([*wrapped(text, width(), role="heading"), Line("")])


def _command(arguments: argparse.Namespace) -> str:
    words = ["gradconform", "fuzz", arguments.target, "--seed", str(arguments.seed)]
    words += [] if arguments.device == "cpu" else ["--device", arguments.device]
    words += [] if arguments.dtype == "float32" else ["--dtype", arguments.dtype]
    return shlex.join(words)
