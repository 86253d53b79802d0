"""The arguments of every command, and the module with its work, which is imported when the command runs.

Nothing here imports torch, so that help is quick and a mistyped option is rejected at once.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator
from functools import cache, partial

from gradconform.run.options import OPTIONS
from gradconform.run.source import CommandSource
from gradconform.run.sources import COMMANDS as COMMAND_SOURCES
from gradconform.run.sources import SOURCES, command_source
from gradconform.target.lookup import ENTRY_POINTS, registered
from gradconform.user_input.option_help import CHECK_TIMEOUT, DEFAULT_SEED
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

from . import report_arguments  # noqa: F401 (registers its commands)
from .parsing import (
    COMMANDS,
    EXAMPLES,
    EXIT_CODES,
    SEVERAL,
    SWITCH,
    TARGETS,
    Parser,
    add_count,
    add_option,
    add_output,
    add_output_options,
    add_report_files,
    add_target,
    command,
    duration_given,
    names_given,
    number_given,
)

#: The time limit in seconds for importing the target and making the plan: some targets first build an extension.
START_TIMEOUT = 600.0

#: The time limit in seconds for checks that end or hang their process, in the whole run: three hangs with repeats.
MAX_LOST_TIME = 1200.0

#: The defaults of ``gradconform run`` if neither the command line nor another place sets an option.
RUN_DEFAULTS = {
    "check_timeout": CHECK_TIMEOUT,
    "start_timeout": START_TIMEOUT,
    "max_lost_time": MAX_LOST_TIME,
    "time_budget": None,
    "workers": 1,
    "isolation": True,
    "no_waivers": False,
}

_SECONDS = "seconds greater than 0, such as 30 or 0.5"


@command("run", "run:run")
def _run(one: argparse.ArgumentParser) -> None:
    """Judge a target by the contract and print the verdict.

    Run the checks of the contract on a target. Print what failed, why, and the verdict.
    """
    names = sorted(registered(ENTRY_POINTS))
    # Align each line with the first line's names, and keep within 80 columns.
    targets = TARGETS.format(registered=textwrap.fill(", ".join(names), 54).replace("\n", "\n" + " " * 26))
    one.epilog = f"{targets}\n{EXAMPLES}\n{EXIT_CODES}"
    add_target(one, "code to judge, see below", optional=True)
    for name in OPTIONS:
        if name == "waivers":
            expected = one.add_mutually_exclusive_group()
            add_option(expected, name)
            expected.add_argument("--no-waivers", **SWITCH, help="expect no failures; ignore any waiver file")
        elif name != "target":
            add_option(one, name)
    _add_records_and_workers(one)
    add_output_options(one)
    one.add_argument(
        "--last-failed", "--lf", dest="last_failed", **SWITCH,
        help="run only the checks that failed in TARGET's last run from this folder, or all if none failed",
    )  # fmt: skip
    only = one.add_mutually_exclusive_group()
    add_report_files(one, json=only)
    only.add_argument("--list", **SWITCH, help="print the checks that would run, and stop")


def _add_source(one: argparse.ArgumentParser, source: CommandSource) -> None:
    """Add the options of a source with a command of its own, its records and its report."""
    one.set_defaults(source=source.command)
    for option in source.options:
        if option.name == "target":
            add_target(one, option.help, optional=True, metavar=option.metavar)
        else:
            add_option(one, option)
    _add_records(one)
    _add_limit(one)
    add_output_options(one)
    add_report_files(one)


def _add_records(one: argparse.ArgumentParser) -> None:
    records = one.add_mutually_exclusive_group()
    records.add_argument(
        "--ndjson", metavar="PATH", help="append each result to PATH as it arrives, one JSON record per line (NDJSON)"
    )
    records.add_argument(
        "--resume", metavar="PATH", help="continue the run that --ndjson recorded in PATH: run the remaining checks"
    )


def _add_records_and_workers(one: argparse.ArgumentParser) -> None:
    _add_records(one)
    one.add_argument(
        "--no-isolation",
        dest="isolation",
        action="store_const",
        const=False,
        help="run the checks in this process: if the target crashes or hangs, so does the run",
    )
    _add_time(one, "--check-timeout", CHECK_TIMEOUT, "report a check as hung after SECONDS")
    _add_time(
        one,
        "--start-timeout",
        START_TIMEOUT,
        "limit the time before a process's first check: import the target, prepare the device and the plan",
    )
    _add_time(
        one,
        "--max-lost-time",
        MAX_LOST_TIME,
        "stop once crashed and hung checks, with their retries, have taken SECONDS in total",
    )
    one.add_argument(
        "--time-budget",
        type=duration_given,
        metavar="TIME",
        help="start no check after TIME, such as 90s, 10m or 1h; --resume runs the remaining checks (default: none)",
    )
    _add_limit(one)
    add_count(one, "-n", "--workers", help="run the checks in N processes (default: 1)")


def _add_limit(one: argparse.ArgumentParser) -> None:
    limit = one.add_mutually_exclusive_group()
    limit.add_argument(
        "-x",
        "--exitfirst",
        dest="maxfail",
        action="store_const",
        const=1,
        help="stop after the first failure, as --maxfail 1",
    )
    add_count(limit, "--maxfail", help="stop after N checks that failed or raised an error")


def _add_time(one: argparse.ArgumentParser, flag: str, default: float | str, what: str) -> None:
    """Add an option that takes seconds; ``default`` may be words."""
    one.add_argument(
        flag,
        type=partial(number_given, fits=lambda seconds: seconds > 0, expected=_SECONDS),
        metavar="SECONDS",
        help=f"{what} (default: {default if isinstance(default, str) else format(default, 'g')})",
    )


@command("init", "init:init", epilog=EXIT_CODES)
def _init(one: argparse.ArgumentParser) -> None:
    """Write a test file, a waiver file and a CI workflow.

    Write three files into the current folder: a pytest file, a waiver file for expected failures, and a GitHub Actions
    workflow. The workflow runs the contract, compares the result with the main branch, and posts the failures as the
    job summary. Existing files are kept. With --new, write only the first file of a target, an adapter, a runtime, a
    device plugin or a sharded stage; it runs at once and says what to change.
    """
    one.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="code to judge, as for 'gradconform run' (default: the only file here that defines stage_backward)",
    )
    one.add_argument(
        "--new",
        choices=("target", "adapter", "runtime", "device", "sharded"),
        help="write only the first file of a new target, adapter, runtime, device plugin or sharded stage",
    )
    add_count(one, "--shards", default=1, help="split the contract over N workflow jobs, and merge their reports")


_REPLAY_EXAMPLES = """\
examples:
  gradconform replay split.gradients.lstm mypackage.backward
  gradconform replay report.json#3                        the third failure
  gradconform replay report.json#split.gradients.lstm
  gradconform replay report.json#3 --script defect.py     for a bug report
  gradconform replay step.plain mypackage.runtime:Runtime --script defect.py
"""


@command("replay", "replay:replay", epilog=_REPLAY_EXAMPLES)
def _replay(one: argparse.ArgumentParser) -> None:
    """Run one check again, or write it as a standalone script.

    Run one check again exactly as it ran, and print every detail. The exit code is 1 if the check fails.
    """
    one.add_argument(
        "what",
        metavar="ID",
        help="id of a check or a training step; REPORT.json#N for the N-th failure of a report; or REPORT.json#ID",
    )
    add_target(one, "as for run; a report names its target", optional=True)
    for name, option in OPTIONS.items():
        if option.changes == "results" and name != "target":
            alone = name in {"device", "dtype"}
            default = " (default: the report's)" if alone or option.kind == "switch" else ""
            add_option(one, name, alone=alone, help=f"as for run{default}", unset="the report's")
    limit = f"the report's, or {CHECK_TIMEOUT:g}"
    _add_time(one, "--check-timeout", limit, "end with the stack of a check that hangs, after SECONDS")
    add_output(
        one,
        "--script",
        help="write a Python script that needs only torch and the implementation; run a training step's script with "
        "torchrun",
    )


@command("fuzz", "fuzz:fuzz")
def _fuzz(one: argparse.ArgumentParser) -> None:
    """Try random stages and programs, and shrink each failure.

    Try random stages and programs that the target claims to support, and compare them with plain autograd. The search
    continues after a failure, and reports each distinct defect once, shrunk. The exit code is 1 if a MUST check failed.
    """
    add_target(one, "code to judge, as for 'gradconform run'")
    add_count(one, "--max-examples", default=1000, help="try N random examples")
    add_count(one, "--time-budget", default=60, metavar="SECONDS", help="stop after SECONDS")
    add_option(one, "device", default="cpu", help="run on DEVICE")
    add_option(one, "device_plugins")
    add_option(one, "dtype", default="float32", help="run in DTYPE")
    add_option(one, "seed", default=DEFAULT_SEED, help="generate the examples and all values from this seed")
    one.add_argument("--reproduce", metavar="BLOB", help="run only the trial that an earlier run printed as BLOB")


@command(
    "selftest",
    "selftest:selftest",
    help="check that every known fault is found on your device",
)
def _selftest(one: argparse.ArgumentParser) -> None:
    """Run the contract on known faults and correct variants.

    Run the contract on each fault and each correct variant that the kit ships, on your device. Print which check finds
    which fault. The exit code is 1 if a fault is not found or a correct variant fails.
    """
    add_option(one, "device", default="cpu", help="run on DEVICE")
    add_option(one, "device_plugins")
    add_option(one, "dtype", default="float32", help="run in DTYPE")
    add_option(one, "profile", default="standard", help="run this part of the contract")
    one.add_argument("--faults", metavar="GLOB", help="try only the faults whose name matches GLOB (default: all)")
    one.add_argument(
        "--whole",
        action="store_true",
        help="run every check on every fault, which takes minutes (default: only the checks that the fault names)",
    )
    one.add_argument("-x", "--exitfirst", action="store_true", help="end each whole run at its first failed MUST check")
    one.add_argument("--shard", metavar="I/N", help="try part I of N of the faults and variants (default: all)")
    add_output(one, "--html", help="write the matrix as one HTML page")
    add_output(one, "--json", help="write the matrix as JSON (- for standard output)")


_DEVICE_EXAMPLES = """\
examples:
  gradconform device cuda
  gradconform device cpu,npu:0 --time-budget 10m --json npu.json
  gradconform device npu --dtype bfloat16 --sizes large --ndjson npu.ndjson
  gradconform device --resume npu.ndjson
  gradconform report npu.json --html npu.html
"""


#: The options of sources that ``gradconform device`` has with a default and a help text of its own.
_ON_DEVICES = {name: option.on_devices for name, option in OPTIONS.items() if option.on_devices is not None}

#: The defaults of ``gradconform device`` that differ from a run's.
DEVICE_DEFAULTS = {
    "dtype": "float32",
    "profile": "quick",
    **{name: default for name, (default, _) in _ON_DEVICES.items()},
}


def _of_sources_on_devices() -> Iterator[str]:
    """Yield the options of each source whose checks ``gradconform device`` runs."""
    return (option.name for source in SOURCES.values() if source.area for option in source.options)


@command("device", "device:device", epilog=f"{_DEVICE_EXAMPLES}\n{EXIT_CODES}")
def _device(one: argparse.ArgumentParser) -> None:
    """Judge a device: the contract, operations and model blocks.

    Run correct code on a device, so that each failure is the device's: the contract, each operation that torch lists as
    differentiable, and model blocks at increasing sizes. Print what is right, what is wrong and above which size, what
    was not tried, and what to fix first. Without options this is float32, profile quick and no known faults, for slow
    devices; --dtype all, --profile standard and --fault all judge more. --operation, --block, --setting and --fault run
    the named parts alone; with --profile the contract runs as well.
    """
    one.add_argument("device", metavar="DEVICE", nargs="*", type=names_given, help="devices to judge, as for run")
    first = ("device_plugins", "dtype", "flags", "profile")
    last = ("checks", "exclude_checks", "skip_operations", "seed", "shard")
    for name in (*first, *_of_sources_on_devices(), *last):
        default, words = _ON_DEVICES.get(name, (DEVICE_DEFAULTS.get(name), None))
        add_option(one, name, unset=default, help=words)
    _add_records_and_workers(one)
    add_output_options(one, formats=False)
    add_report_files(one)
    add_output(
        one, "--skip-list", help="write the wrong and unsupported operations in the format of torch's device tests"
    )


@command("doctor", "doctor:doctor")
def _doctor(one: argparse.ArgumentParser) -> None:
    """Show which devices, dtypes and targets work here.

    Probe each type of device in its own process, with a time limit. Show which indices and dtypes can be used, and
    which lines of the pre-flight pass. Show the registered targets, and whether each is installed. The exit code is 4
    if a device named by --device cannot be used or fails its pre-flight.
    """
    one.add_argument(
        "--device", **SEVERAL, metavar="DEVICE", help="show only these devices (default: all, and the targets)"
    )
    add_option(one, "device_plugins")
    one.add_argument("--json", action="store_true", help="print JSON")


_BENCH_EXAMPLES = """\
examples:
  gradconform bench
  gradconform bench 'pytorch-*' replicas
  gradconform bench --list
"""


@command("bench", "bench:bench", epilog=_BENCH_EXAMPLES)
def _bench(one: argparse.ArgumentParser) -> None:
    """Judge real defects from public issues and their fixed versions.

    Judge each defect of the bench with the command that its record names, once on the faulty code and once on the fixed
    version. Print how many defects are found, their causes, and how many fixed versions fail. The exit code is 1 if a
    result differs from its record, and 5 if a library that a defect needs is not installed.
    """
    one.add_argument(
        "defects", metavar="DEFECT", nargs="*", help="judge only defects whose name or class matches a glob"
    )
    add_count(one, "-n", "--workers", help="run N commands at a time (default: one per processor)")
    add_output(one, "--write", help="write the page of all defects as Markdown")
    only = one.add_mutually_exclusive_group()
    add_output(only, "--json", help="write the results as JSON (- for standard output)")
    only.add_argument("--list", **SWITCH, help="print the defects and where they were reported, and stop")


_UPSTREAM_EXAMPLES = """\
examples:
  gradconform upstream                                (the list)
  gradconform upstream torch/tied-apart-freed-graph
  gradconform upstream 'd9d/*' --into reports
"""


@command("upstream", "upstream:upstream", epilog=_UPSTREAM_EXAMPLES)
def _upstream(one: argparse.ArgumentParser) -> None:
    """List defects found in torch and others, or write reports.

    Without DEFECT, list the defects that the kit found in torch and other projects; a script confirms each. With
    DEFECT, write a report and a test of at most 30 lines in the style of that project's test suite. The test needs only
    that project: it fails on the version with the defect, and passes once the defect is fixed. Nothing is sent
    anywhere.
    """
    one.add_argument("defects", metavar="DEFECT", nargs="*", help="write the defects whose name matches a glob")
    one.add_argument("--all", **SWITCH, help="write all defects, with one folder per project")
    one.add_argument("--into", metavar="FOLDER", help="write into FOLDER (default: the current folder)")
    one.add_argument("--force", **SWITCH, help="overwrite existing files")


def _add_commands_of_sources() -> None:
    """Register the commands of sources; the docstring form of their help is that of :func:`.parsing.command`."""
    for name in COMMAND_SOURCES:
        source = command_source(name)

        def add(one: argparse.ArgumentParser, source: CommandSource = source) -> None:
            _add_source(one, source)

        add.__doc__ = source.help
        command(name, "extra_checks:judge_source", epilog=source.examples or None)(add)


_add_commands_of_sources()

#: In the order of the help.
_ORDER = (
    "run", "init", "replay", "list", "explain", "contract", "fuzz", "selftest", "bench", "upstream", *COMMAND_SOURCES,
    "merge", "compare", "report", "badge", "waivers", "bundle", "verify",
    "device", "doctor",
)  # fmt: skip


@cache
def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command; ``command`` in its result names the function to call."""
    top = Parser(
        prog="gradconform",
        description="Judge a stage backward: the backward pass of one pipeline-parallel stage, full or split.",
        epilog=f"{EXAMPLES}\n{EXIT_CODES}",
    )
    top.add_argument("--version", action="version", version=f"gradconform {KIT_VERSION}, contract {CONTRACT_VERSION}")
    found = top.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for name in _ORDER:
        COMMANDS[name](found)
    return top
