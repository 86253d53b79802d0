"""The command ``gradconform pipeline``: the target inside torch's own pipelines, on several processes."""

from __future__ import annotations

import argparse
import os
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from gradconform.cli.console import refuse, width, write
from gradconform.cli.current_folder import current_folder_first
from gradconform.cli.output_file import OutputFileError, check_writable, hand_over
from gradconform.cli.parsing import SEVERAL, count_given, seed_given
from gradconform.defaults import DEFAULT_SEED
from gradconform.results import EXIT_INTERRUPTED

if TYPE_CHECKING:
    from gradconform.pipeline.question import Case, Question
    from gradconform.results import Report, Result

_EXAMPLES = """\
examples:
  gradconform pipeline torch --schedule all --ranks 2
  gradconform pipeline mypackage.backward --schedule ZBVZeroBubble,1F1B --ranks 4
  gradconform pipeline torch --schedule mine.csv --ranks 2
  gradconform pipeline torch --schedule 1F1B --ranks 8 --nnodes 2 \\
      --rdzv-endpoint node0:29500        (the same command on each of the two)
"""


def add_pipeline(found: Any) -> None:
    """Add the command to the parsers that ``found`` makes."""
    one = found.add_parser(
        "pipeline",
        help="run a target inside torch's own pipelines on several processes",
        description=(
            "Put the target's functions into torch's PipelineStage and run torch's schedules on several processes: "
            "outputs, losses and every parameter gradient on every rank against one plain backward of the whole model."
        ),
        epilog=_EXAMPLES,
    )
    one.set_defaults(command=pipeline, parser=one)
    one.add_argument("target", metavar="TARGET", help="torch's three functions, named as for 'gradconform run'")
    one.add_argument(
        "--schedule",
        **SEVERAL,
        required=True,
        metavar="NAME",
        help="a schedule class of torch, the path of a CSV file in torch's format, or all; may be given several times",
    )
    one.add_argument("--ranks", type=count_given, default=2, metavar="N", help="processes in all (default: 2)")
    one.add_argument(
        "--stages-per-rank", type=count_given, metavar="K", help="stages of each rank (default: 2, or 1 where it must)"
    )
    one.add_argument(
        "--microbatches", type=count_given, metavar="M", help="micro-batches of a step (default: four per rank)"
    )
    one.add_argument("--checks", **SEVERAL, metavar="GLOB", help="only the checks whose id matches")
    one.add_argument("--device", default="cpu", metavar="DEVICE", help="where stages are (default: cpu)")
    one.add_argument("--dtype", default="float32", metavar="DTYPE", help="as for run (default: float32)")
    one.add_argument("--seed", type=seed_given, default=DEFAULT_SEED, metavar="N", help="what values are drawn from")
    one.add_argument(
        "--timeout", type=count_given, default=60, metavar="SECONDS", help="what one check may take (default: 60)"
    )
    one.add_argument("--nnodes", type=count_given, default=1, metavar="N", help="machines (default: 1)")
    one.add_argument(
        "--rdzv-endpoint",
        default="localhost:0",
        metavar="HOST:PORT",
        help="where machines meet, as for torchrun",
    )
    one.add_argument("--rdzv-id", default="gradconform", metavar="ID", help="a name that the machines share")
    one.add_argument("--json", metavar="PATH", help="write the report there as JSON")


def pipeline(arguments: argparse.Namespace) -> int:
    """Run a target inside pipelines; return the exit code of the verdict."""
    import gradconform.session  # noqa: F401, PLC0415 (before the folder is, so that nothing in it can stand for torch)
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)
    from gradconform.fixtures.schedules import ScheduleError  # noqa: PLC0415 (only this command and run take schedules)
    from gradconform.targets import TargetError  # noqa: PLC0415 (it imports torch)

    try:
        path = None if arguments.json is None else check_writable(arguments.json)
        _refuse_sizes(arguments)
        with current_folder_first():
            question, report = _question(arguments)
    except (OutputFileError, SelectionError, ScheduleError, TargetError) as error:
        return refuse(error)
    return _judge(question, report, arguments, path)


def _refuse_sizes(arguments: argparse.Namespace) -> None:
    from gradconform.devices import SelectionError  # noqa: PLC0415 (it imports torch)

    if arguments.ranks % arguments.nnodes:
        msg = f"--ranks {arguments.ranks} cannot be shared evenly by --nnodes {arguments.nnodes}"
        raise SelectionError(msg)
    if arguments.nnodes > 1 and arguments.rdzv_endpoint.endswith(":0"):
        msg = f"--nnodes {arguments.nnodes} needs --rdzv-endpoint HOST:PORT, one of the machines and a free port there"
        raise SelectionError(msg)


def _question(arguments: argparse.Namespace) -> tuple[Question, Report]:
    """Return what the ranks run, and the report before they do; raise for what can be wrong with either."""
    from gradconform.devices import device_named, dtype_named  # noqa: PLC0415 (it imports torch)
    from gradconform.environment import environment  # noqa: PLC0415 (as above)
    from gradconform.fixtures.schedules.from_torch import NAMES  # noqa: PLC0415 (as above)
    from gradconform.functions import FunctionsAdapter  # noqa: PLC0415 (as above)
    from gradconform.pipeline.plan import cases_of  # noqa: PLC0415 (as above)
    from gradconform.pipeline.question import Question  # noqa: PLC0415 (only this command)
    from gradconform.results import Report  # noqa: PLC0415 (as above)
    from gradconform.targets import TargetError, resolve  # noqa: PLC0415 (it imports torch)

    device_named(arguments.device)
    target = resolve(arguments.target)
    if not isinstance(target.adapter, FunctionsAdapter):
        msg = (
            f"target {arguments.target!r} is an adapter of its own; a pipeline takes torch's three functions, which "
            "its PipelineStage calls"
        )
        raise TargetError(msg)
    names = [name for given in arguments.schedule for name in (NAMES if given == "all" else (given,))]
    cases = cases_of(
        names,
        ranks=arguments.ranks,
        stages_per_rank=arguments.stages_per_rank,
        microbatches=arguments.microbatches,
    )
    chosen = _chosen(cases, arguments.checks)
    question = Question(
        target=arguments.target,
        cases=chosen,
        device=arguments.device,
        dtype=str(dtype_named(arguments.dtype)).removeprefix("torch."),
        seed=arguments.seed,
        timeout=arguments.timeout,
        parent=os.getpid(),
    )
    report = Report(
        profile="standard",
        target=target.described(),
        environment=environment(),
        seed=arguments.seed,
        manifest=len(cases),
        planned=len(chosen),
        beside=tuple(dict.fromkeys(case.size for case in chosen)),
    )
    return question, report


def _chosen(cases: tuple[Case, ...], patterns: list[str] | None) -> tuple[Case, ...]:
    """Return the cases whose id matches one of the patterns; refuse a pattern that matches none."""
    from gradconform.devices import SelectionError, nearest  # noqa: PLC0415 (it imports torch)

    for pattern in patterns or ():
        if not any(fnmatchcase(case.id, pattern) for case in cases):
            msg = (
                f"--checks {pattern!r} matches no check; nearest: {nearest(pattern, [case.id for case in cases])[:300]}"
            )
            raise SelectionError(msg)
    return tuple(case for case in cases if any(fnmatchcase(case.id, pattern) for pattern in patterns or ("*",)))


def _judge(question: Question, report: Report, arguments: argparse.Namespace, path: str | None) -> int:
    from gradconform.cli.progress import Areas  # noqa: PLC0415 (only a run shows progress)
    from gradconform.pipeline.launch import Machines, run_pipeline  # noqa: PLC0415 (only this command)
    from gradconform.report.terminal import closing, opening  # noqa: PLC0415 (only a run reports)

    machines = Machines(
        ranks=arguments.ranks, machines=arguments.nnodes, endpoint=arguments.rdzv_endpoint, run=arguments.rdzv_id
    )
    write(opening(report, [(question.device, question.dtype)], width()))
    areas = Areas([case.name for case in question.cases], _schedule_of)

    def on_result(result: Result) -> None:
        report.results.append(result)
        areas.add(result)

    interrupted = False
    try:
        stopped = run_pipeline(question, machines, on_result)
    except KeyboardInterrupt:
        stopped, interrupted = "interrupted", True
    areas.flush()
    code = EXIT_INTERRUPTED if interrupted else report.exit_code
    if path is not None:
        code = hand_over(path, report.to_json(), code=code)
    write(closing(report, width(), stopped))
    return code


def _schedule_of(result: Result) -> str:
    return result.check.rpartition(".")[0]
