"""The arguments of every command, and the module that does its work: that is imported when the command is given.

Nothing here imports torch, so that help is quick and a mistyped option is refused at once.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import textwrap
from functools import partial

from gradconform.naming import STEP_PROFILES
from gradconform.option_words import DEFAULT_SEED
from gradconform.run.options import OPTIONS
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
    add_report_files,
    add_telling,
    command,
    duration_given,
    names_given,
    number_given,
)

#: How long one check may take, in seconds; one of the contract takes milliseconds.
CHECK_TIMEOUT = 120.0

#: What importing the target and making the plan may take, in seconds: some build an extension first.
START_TIMEOUT = 600.0

#: What checks that end or hang their process may take in the whole run, in seconds: three that hang, and are run again.
MAX_LOST_TIME = 1200.0

#: What ``gradconform run`` does where neither the command line nor anything else says otherwise.
RUN_DEFAULTS = {
    "check_timeout": CHECK_TIMEOUT,
    "start_timeout": START_TIMEOUT,
    "max_lost_time": MAX_LOST_TIME,
    "time_budget": None,
    "workers": 1,
    "isolation": True,
    "no_waivers": False,
}

_NO_TIME = "no time; expected seconds, such as 30 or 0.5"


@command("run", "run:run")
def _run(one: argparse.ArgumentParser) -> None:
    """Run the contract against a target and give a verdict.

    Run the contract against a target, tell what failed and why, and give a verdict.
    """
    names = sorted(entry.name for entry in importlib.metadata.entry_points(group="gradconform.adapters"))
    # Each line goes under the first one's names, and within 80 columns.
    targets = TARGETS.format(registered=textwrap.fill(", ".join(names), 54).replace("\n", "\n" + " " * 26))
    one.epilog = f"{targets}\n{EXAMPLES}\n{EXIT_CODES}"
    one.add_argument("target", metavar="TARGET", nargs="?", help="what is judged, see below")
    for name in OPTIONS:
        if name == "waivers":
            expected = one.add_mutually_exclusive_group()
            add_option(expected, name)
            expected.add_argument("--no-waivers", **SWITCH, help="expect no failure, whatever file there is")
        elif name != "target":
            add_option(one, name)
    _add_records_and_workers(one)
    add_telling(one)
    one.add_argument(
        "--last-failed", "--lf", dest="last_failed", **SWITCH,
        help="only the checks that failed when TARGET was last run from this folder, all where none did",
    )  # fmt: skip
    only = one.add_mutually_exclusive_group()
    add_report_files(one, json=only)
    only.add_argument("--list", **SWITCH, help="print what would run, and run nothing")


def _add_records_and_workers(one: argparse.ArgumentParser) -> None:
    records = one.add_mutually_exclusive_group()
    records.add_argument(
        "--ndjson", metavar="PATH", help="append each result there as it comes, one JSON record a line (NDJSON)"
    )
    records.add_argument(
        "--resume", metavar="PATH", help="go on with the run that --ndjson kept there: what has no result yet is run"
    )
    one.add_argument(
        "--no-isolation",
        dest="isolation",
        action="store_const",
        const=False,
        help="run the checks in this process: a crash or hang of the target is one of the run",
    )
    _add_time(one, "--check-timeout", CHECK_TIMEOUT, "what one check may take; one that takes longer has hung")
    _add_time(
        one,
        "--start-timeout",
        START_TIMEOUT,
        "what may pass until a process begins a check: importing the target, making ready the device and the plan",
    )
    _add_time(
        one,
        "--max-lost-time",
        MAX_LOST_TIME,
        "run no more where checks that ended or hung their process have taken so long, with what they were run again",
    )
    one.add_argument(
        "--time-budget",
        type=duration_given,
        metavar="TIME",
        help="begin no check after so long, such as 90s, 10m or 1h; what is left is told, and --resume runs it "
        "(default: none)",
    )
    limit = one.add_mutually_exclusive_group()
    limit.add_argument("-x", "--exitfirst", dest="maxfail", action="store_const", const=1, help="as --maxfail 1")
    add_count(limit, "--maxfail", help="run no more after so many checks that failed or could not be judged")
    add_count(one, "-n", "--workers", help="how many processes share the checks (default: 1)")


def _add_time(one: argparse.ArgumentParser, flag: str, default: float, what: str) -> None:
    """Add an option that takes seconds."""
    one.add_argument(
        flag,
        type=partial(number_given, fits=lambda seconds: seconds > 0, otherwise=_NO_TIME),
        metavar="SECONDS",
        help=f"{what} (default: {default:g})",
    )


@command("init", "init:init", epilog=EXIT_CODES)
def _init(one: argparse.ArgumentParser) -> None:
    """Write a test file, a waiver file and a CI workflow into the current folder.

    Write into the current folder what a repository needs to be judged from now on: a pytest file, a file for
    failures that are expected, and a workflow of GitHub Actions that runs the contract, compares with the main branch,
    and posts what failed as the summary of the job. A file that is there already is left as it is.
    """
    one.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        help="what is judged, as for 'gradconform run' (default: the one file here that defines stage_backward)",
    )
    add_count(
        one, "--shards", default=1, help="run the contract in so many jobs of the workflow, and merge their reports"
    )


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
    """Run one check again, alone, or write it as a script that needs only torch.

    Run one check again as it was run, and print all it says; 1 where it fails.
    """
    one.add_argument(
        "what",
        metavar="ID",
        help="the id of a check or of a training step, or REPORT.json#N for the N-th failure of a report, or "
        "REPORT.json#ID",
    )
    one.add_argument("target", nargs="?", metavar="TARGET", help="as for run; a report names its own")
    for name, option in OPTIONS.items():
        if option.changes == "results" and name != "target":
            add_option(one, name, alone=name in {"device", "dtype"}, help="as for run (default: the report's)")
    add_output(
        one,
        "--script",
        help="write there one Python file that needs only torch and the implementation; torchrun runs that of a "
        "training step",
    )


@command("fuzz", "fuzz:fuzz")
def _fuzz(one: argparse.ArgumentParser) -> None:
    """Try random stages and programs, and shrink what fails.

    Try random stages and programs that the target claims to support, against plain autograd, and go on after a
    failure; tell every distinct defect once, shrunk. Exit code 1 where a MUST failed.
    """
    one.add_argument("target", metavar="TARGET", help="what is tried, as for 'gradconform run'")
    add_count(one, "--max-examples", default=1000, help="how many random examples")
    add_count(one, "--time-budget", default=60, metavar="SECONDS", help="stop after so many seconds")
    add_option(one, "device", default="cpu", help="where it runs")
    add_option(one, "device_plugins")
    add_option(one, "dtype", default="float32", help="as for 'gradconform run'")
    add_option(one, "seed", default=DEFAULT_SEED, help="what the examples and all values are drawn from")
    one.add_argument("--reproduce", metavar="BLOB", help="try the one trial that an earlier run printed")


@command(
    "selftest",
    "selftest:selftest",
    help="run the contract against known faults and right variants: does it find what it must here?",
)
def _selftest(one: argparse.ArgumentParser) -> None:
    """Run the contract against known faults and right variants.

    Run the contract against every fault and every right variant that the kit ships, on a device of yours, and print
    which check fails which fault. The exit code is 1 where a fault survives or a variant fails.
    """
    add_option(one, "device", default="cpu", help="where it runs")
    add_option(one, "device_plugins")
    add_option(one, "dtype", default="float32", help="as for run")
    add_option(one, "profile", default="standard", help="as for run")
    one.add_argument("--faults", metavar="GLOB", help="only the faults whose name matches (default: all)")
    one.add_argument(
        "--whole",
        action="store_true",
        help="hold every fault against every check, for minutes (default: against the checks that name it)",
    )
    add_output(one, "--html", help="write the matrix there as one HTML page")
    add_output(one, "--json", help="write it there as JSON; - is the standard output")


_DEVICE_EXAMPLES = """\
examples:
  gradconform device cuda
  gradconform device cpu,npu:0 --time-budget 10m --json npu.json
  gradconform device npu --dtype bfloat16 --sizes large --ndjson npu.ndjson
  gradconform device --resume npu.ndjson
  gradconform report npu.json --html npu.html
"""


#: What ``gradconform device`` does where nothing is said, other than a run.
DEVICE_DEFAULTS = {
    "dtype": "all", "profile": "quick", "operation": "all", "oracle": "all", "block": "all",
    "setting": "all", "fault": "all",
}  # fmt: skip

_SAID_OF_DEVICE = {
    "operation": "which operations of torch, by names or globs",
    "oracle": "which oracles need no second device: layout, finite-differences, additive, or all",
    "block": "which blocks of models, by names or globs; --sizes says how large",
    "setting": "under which settings of torch some stages are judged, by names or globs",
    "fault": "which known faults must be found there: names, globs, or none",
}


@command("device", "device:device", epilog=f"{_DEVICE_EXAMPLES}\n{EXIT_CODES}")
def _device(one: argparse.ArgumentParser) -> None:
    """Judge a device: the contract, every operation of torch and blocks of models, in every dtype that it has.

    Run what is known to be right on a device, so that whatever is wrong there is the device's: the contract, every
    operation that torch lists as differentiable, one by one, and blocks of models at a ladder of sizes. Tell what is
    right, what is wrong and above which size, what was not tried, and what to mend first.
    """
    one.add_argument("device", metavar="DEVICE", nargs="*", type=names_given, help="which, named as for run")
    options = (
        "device_plugins", "dtype", "flags", "profile", "operation", "oracle", "block", "sizes", "setting", "fault",
        "checks", "exclude_checks", "skip_operations", "seed", "shard", "plan",
    )  # fmt: skip
    for name in options:
        add_option(one, name, unset=DEVICE_DEFAULTS.get(name), help=_SAID_OF_DEVICE.get(name))
    _add_records_and_workers(one)
    add_telling(one, formats=False)
    add_report_files(one)
    add_output(one, "--skip-list", help="write there what is wrong or not done, in the form of torch's device tests")


@command("doctor", "doctor:doctor")
def _doctor(one: argparse.ArgumentParser) -> None:
    """Show the devices, dtypes and targets that can be used here, and what each device gets wrong.

    Probe devices, each type in a process of its own with a time limit: which indices can be used, in which dtypes,
    and which lines of the pre-flight hold; show the registered targets and whether they are installed. With --device
    show only that device. The exit code is 4 where a device that is named cannot be used, or fails its pre-flight.
    """
    one.add_argument("--device", **SEVERAL, metavar="DEVICE", help="show only these (default: all, and the targets)")
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
    """Judge real defects that public issues report, and the mended versions: what of them the kit finds.

    Judge each defect of the bench by the command that its record names, on the code at fault and on the mended
    version, and tell how many are found, with which cause, and how many mended versions are accused. The exit code is 1
    if one is not told as its record says, and 5 if one cannot be judged here, because its library is not installed.
    """
    one.add_argument("defects", metavar="DEFECT", nargs="*", help="only those whose name or class a glob matches")
    add_count(one, "-n", "--workers", help="how many commands run at a time (default: one for each processor)")
    add_output(one, "--write", help="write the page of all defects there, as Markdown")
    only = one.add_mutually_exclusive_group()
    add_output(only, "--json", help="write what was told there as JSON; - is the standard output")
    only.add_argument("--list", **SWITCH, help="print the defects and where they are reported, and run nothing")


_UPSTREAM_EXAMPLES = """\
examples:
  gradconform upstream                                (the list)
  gradconform upstream torch/tied-apart-freed-graph
  gradconform upstream 'd9d/*' --into reports
"""


@command("upstream", "upstream:upstream", epilog=_UPSTREAM_EXAMPLES)
def _upstream(one: argparse.ArgumentParser) -> None:
    """List the defects confirmed in torch and other projects; write a report and a short test of one.

    Without DEFECT, list the defects that the kit found in torch and in other projects, each confirmed by a script. Of
    each that is named, write a report and a test of at most 30 lines in the style of that project's own suite, on that
    project alone: it fails on the version that has the defect, and passes once that is mended. They are yours to offer;
    nothing is sent anywhere.
    """
    one.add_argument("defects", metavar="DEFECT", nargs="*", help="those whose name a glob matches")
    one.add_argument("--all", **SWITCH, help="all of them, in a folder for each project")
    one.add_argument("--into", metavar="FOLDER", help="write into this folder (default: the current one)")
    one.add_argument("--force", **SWITCH, help="write over files that are there already")


_PIPELINE_EXAMPLES = """\
examples:
  gradconform pipeline torch              (training steps, on two ranks)
  gradconform pipeline myruntime.py:Runtime --profile standard
  gradconform pipeline torch --schedule all --ranks 2
  gradconform pipeline torch --fixed      (with the right split in torch)
  gradconform pipeline mypackage.backward --schedule ZBVZeroBubble --ranks 4
  gradconform pipeline torch --schedule mine.csv --ranks 2
  gradconform pipeline torch --schedule 1F1B --ranks 8 --nnodes 2 \\
      --rdzv-endpoint node0:29500        (the same command on each of the two)
"""


@command("pipeline", "extra_checks:pipeline", epilog=_PIPELINE_EXAMPLES)
def _pipeline(one: argparse.ArgumentParser) -> None:
    """Judge whole training steps, or schedules, on several processes.

    Run whole training steps on several processes and hold what every rank has against one plain process: losses,
    gradients, their norm, parameters, buffers. The target is a runtime, or torch's three functions, which are put into
    torch's PipelineStage. With --schedule, judge schedules as such: outputs, losses and gradients of a chain of stages.
    """
    one.add_argument(
        "target", metavar="TARGET", help="a runtime, or torch's three functions, named as for 'gradconform run'"
    )
    one.add_argument(
        "--profile",
        choices=STEP_PROFILES,
        help="training steps: quick has the commonest, on two ranks; standard every pair of what can be composed, on "
        "two and four (default: quick)",
    )
    one.add_argument(
        "--schedule",
        **SEVERAL,
        metavar="NAME",
        help="in place of training steps: a schedule class of torch, the path of a CSV file in torch's format, or all; "
        "may be given several times",
    )
    add_count(one, "--ranks", help="of schedules: processes in all (default: 2)")
    add_count(
        one, "--stages-per-rank", metavar="K", help="of schedules: stages of each rank (default: 2, or 1 where it must)"
    )
    add_count(one, "--microbatches", metavar="M", help="of schedules: micro-batches of a step (default: four per rank)")
    add_option(one, "checks")
    add_option(one, "device", default="cpu", help="where stages are")
    add_option(one, "device_plugins")
    one.add_argument(
        "--ranks-share-device",
        action="store_true",
        help="let several ranks have one index of the device; they communicate by gloo over copies on the host",
    )
    add_option(one, "dtype", default="float32", help="as for run")
    add_option(one, "seed", default=DEFAULT_SEED)
    add_count(
        one,
        "--timeout",
        default=60,
        metavar="SECONDS",
        help="what one check may take; where stages are compiled, four times that",
    )
    _add_machines(one)
    one.add_argument(
        "--fixed",
        action="store_true",
        help="of the target torch: with the kit's right split in it, as gradconform.reference.install() puts it there, "
        "and beside torch as it is",
    )
    add_telling(one)
    add_report_files(one)


def _add_machines(one: argparse.ArgumentParser) -> None:
    """Add the options of a run on several machines."""
    add_count(one, "--nnodes", default=1, help="machines, which share the ranks evenly")
    one.add_argument(
        "--rdzv-endpoint",
        default="localhost:0",
        metavar="HOST:PORT",
        help="where machines meet, as for torchrun; steps on four ranks meet at the port behind it",
    )
    one.add_argument("--rdzv-id", default="gradconform", metavar="ID", help="a name that the machines share")


_SCHEDULE_EXAMPLES = """\
examples:
  gradconform schedule-text torch
  gradconform schedule-text torch --schedule mine.csv
  gradconform schedule-text mypackage:Text --schedule ZBVZeroBubble-2x2x3
"""


@command("schedule-text", "extra_checks:schedule_text", epilog=_SCHEDULE_EXAMPLES)
def _schedule_text(one: argparse.ArgumentParser) -> None:
    """Judge how a runtime parses, validates, places, merges and lowers schedules.

    Judge what a pipeline runtime does with schedules before anything runs: parse and print actions, refuse what is
    illegal, place stages on ranks, merge I and W, put in communication and sharding.
    """
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
    add_telling(one)
    add_report_files(one)


@command("stage-objects", "extra_checks:stage_objects")
def _stage_objects(one: argparse.ArgumentParser) -> None:
    """Judge a framework's stage objects: manual, traced, dw_builder, caches, refusals.

    Judge a framework's stage objects in one process: chains of manual and traced stages against the whole model,
    dw_builder, what is refused, and what is let go of.
    """
    one.add_argument(
        "target", metavar="TARGET", help="torch, or package.module:object with the methods of StageObjects"
    )
    add_option(one, "device", default="cpu", help="where stages are")
    add_option(one, "device_plugins")
    add_telling(one)
    add_report_files(one)


#: In the order of the help.
_ORDER = (
    "run", "init", "replay", "list", "explain", "contract", "fuzz", "selftest", "bench", "upstream", "pipeline",
    "schedule-text", "stage-objects", "merge", "compare", "report", "badge", "waivers", "bundle", "verify",
    "device", "doctor",
)  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command; ``command`` of what it parses names the function to call."""
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
