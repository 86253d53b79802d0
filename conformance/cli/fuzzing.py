"""The command ``gradconform fuzz``."""

from __future__ import annotations

import argparse
import shlex
import time
from typing import TYPE_CHECKING, Any

from gradconform.cli.console import complain, refuse, width, write
from gradconform.cli.current_folder import current_folder_first
from gradconform.cli.device_options import add_device_plugin
from gradconform.cli.parsing import count_given, seed_given
from gradconform.defaults import DEFAULT_SEED
from gradconform.results import EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_INCOMPLETE

if TYPE_CHECKING:
    from gradconform.fuzz.campaign import Campaign
    from gradconform.run import Runner
    from gradconform.trial import Trial


def add_fuzz(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "fuzz",
        help="try random stages and programs, and shrink what fails",
        description=(
            "Try random stages and programs that the target claims to support, against plain autograd, and go on after "
            "a failure; tell every distinct defect once, shrunk. Exit code 1 where a MUST failed."
        ),
    )
    one.set_defaults(command=fuzz, parser=one)
    one.add_argument("target", metavar="TARGET", help="what is tried, as for 'gradconform run'")
    one.add_argument(
        "--max-examples", type=count_given, default=1000, metavar="N", help="how many random examples (default: 1000)"
    )
    one.add_argument(
        "--time-budget",
        type=count_given,
        default=60,
        metavar="SECONDS",
        help="stop after so many seconds (default: 60)",
    )
    one.add_argument("--device", default="cpu", metavar="DEVICE", help="where it runs (default: cpu)")
    add_device_plugin(one)
    one.add_argument("--dtype", default="float32", metavar="DTYPE", help="as for 'gradconform run' (default: float32)")
    one.add_argument(
        "--seed",
        type=seed_given,
        default=DEFAULT_SEED,
        metavar="N",
        help=f"what the examples and all values are drawn from (default: {DEFAULT_SEED})",
    )
    one.add_argument("--reproduce", metavar="BLOB", help="try the one trial that an earlier run printed")


def fuzz(arguments: argparse.Namespace) -> int:
    """Try random trials against a target; return 1 where a MUST failed."""
    import gradconform.session  # noqa: F401, PLC0415 (before the folder is, so that nothing in it can stand for torch)

    with current_folder_first():
        from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
        from gradconform.fuzz.blob import BlobError, from_blob  # noqa: PLC0415 (it imports torch)
        from gradconform.run import AdapterError  # noqa: PLC0415 (it imports torch)
        from gradconform.targets import TargetError  # noqa: PLC0415 (it imports torch)

        try:
            trial = None if arguments.reproduce is None else from_blob(arguments.reproduce)
            runner = _runner(arguments)
            _refuse_nothing_claimed(runner)
        except (BlobError, TargetError, SelectionError) as error:
            return refuse(error)
        try:
            return _hunt(runner, arguments) if trial is None else _reproduce(runner, trial, arguments)
        except AdapterError as error:
            complain(f"the adapter cannot be judged through: {error}")
            return EXIT_DOES_NOT


def _runner(arguments: argparse.Namespace) -> Runner:
    from gradconform.devices import dtype_named  # noqa: PLC0415 (it imports torch)
    from gradconform.devices.naming import device_named  # noqa: PLC0415 (as above)
    from gradconform.run import Runner  # noqa: PLC0415 (it imports torch)
    from gradconform.targets import resolve  # noqa: PLC0415 (it imports torch)

    device = device_named(arguments.device, arguments.device_plugin or ())
    dtype = dtype_named(arguments.dtype)
    return Runner(resolve(arguments.target), device=device, dtype=dtype, seed=arguments.seed)


def _refuse_nothing_claimed(runner: Runner) -> None:
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.fixtures.random_stages import Order  # noqa: PLC0415 (it imports torch)

    claims = runner.target.capabilities
    dtype, device = str(runner.dtype).removeprefix("torch."), runner.device.type
    unclaimed = [] if Order.ways(claims) else ["full or split"]
    unclaimed += [] if claims.dtypes is None or dtype in claims.dtypes else [f"dtype {dtype}"]
    unclaimed += [] if claims.devices is None or device in claims.devices else [f"device {device}"]
    if unclaimed:
        msg = f"{runner.target.name} does not claim {', '.join(unclaimed)}; expected a claim, so that it can be tried"
        raise SelectionError(msg)


def _hunt(runner: Runner, arguments: argparse.Namespace) -> int:
    from gradconform.fuzz.campaign import run_campaign  # noqa: PLC0415 (it imports hypothesis)
    from gradconform.report.fuzzing import defect_lines, summary_line  # noqa: PLC0415 (it imports torch)

    _open(runner, arguments)
    told = 0

    def tell(campaign: Campaign) -> None:
        nonlocal told
        for defect in campaign.defects[told:]:
            told += 1
            write(defect_lines(told, defect, width(), _command(arguments)))

    campaign = run_campaign(
        runner,
        max_examples=arguments.max_examples,
        time_budget=arguments.time_budget,
        seed=arguments.seed,
        on_round=tell,
    )
    write([summary_line(campaign, arguments.max_examples)])
    if any(defect.level == "MUST" for defect in campaign.defects):
        return EXIT_DOES_NOT
    return EXIT_CONFORMS if campaign.trials > campaign.unjudged else EXIT_INCOMPLETE


def _reproduce(runner: Runner, trial: Trial, arguments: argparse.Namespace) -> int:
    from gradconform.fuzz.campaign import Campaign  # noqa: PLC0415 (it imports hypothesis)
    from gradconform.fuzz.defect import Defect, key_of  # noqa: PLC0415 (it imports torch)
    from gradconform.fuzz.hunt import Hunt  # noqa: PLC0415 (it imports torch)
    from gradconform.report.fuzzing import defect_lines, summary_line  # noqa: PLC0415 (it imports torch)

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
    from gradconform.report.lines import Line, wrapped  # noqa: PLC0415 (only a run reports)
    from gradconform.version import KIT_VERSION  # noqa: PLC0415 (as above)

    name = f"{runner.target.name} {runner.target.version or ''}".strip()
    text = f"gradconform {KIT_VERSION} fuzzes {name} on {arguments.device} {arguments.dtype}, seed {arguments.seed}"
    write([*wrapped(text, width(), role="heading"), Line("")])


def _command(arguments: argparse.Namespace) -> str:
    words = ["gradconform", "fuzz", arguments.target, "--seed", str(arguments.seed)]
    words += [] if arguments.device == "cpu" else ["--device", arguments.device]
    words += [] if arguments.dtype == "float32" else ["--dtype", arguments.dtype]
    return shlex.join(words)
