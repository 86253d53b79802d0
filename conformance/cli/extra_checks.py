"""The commands of extra checks: ``pipeline``, ``schedule-text`` and ``stage-objects``."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import groupby
from typing import Any, TypeVar

from gradconform.devices.dtypes import dtype_named
from gradconform.devices.environment import environment
from gradconform.devices.prepared import device_named
from gradconform.diagnosis.cause import listed
from gradconform.exits import EXIT_INTERRUPTED
from gradconform.fixtures.schedules import RECORDED, Schedule, ScheduleError, read_csv, recorded
from gradconform.fixtures.schedules.from_torch import NAMES
from gradconform.pipeline.cases import Case, cases_of, clauses_of, lacking
from gradconform.pipeline.cpu_copies import HOST_COPIES
from gradconform.pipeline.exchange import Job
from gradconform.pipeline.extra_checks import ExtraChecks, run_extra
from gradconform.pipeline.launch import Machines, OnResult, run_pipeline
from gradconform.pipeline.options import PipelineOptions
from gradconform.pipeline.placement import backend_for
from gradconform.pipeline.schedule_text import schedule_text_named
from gradconform.pipeline.schedule_text.checks import checks_of
from gradconform.pipeline.stage_objects import stage_objects_named
from gradconform.pipeline.stage_objects.chain import Subject
from gradconform.pipeline.stage_objects.checks import CHECKS
from gradconform.pipeline.training_step.composition import StepCase, step_cases
from gradconform.pipeline.training_step.runtimes import TORCH
from gradconform.report.terminal import opening
from gradconform.requirements.clause import Clause
from gradconform.results import Report, Result
from gradconform.torch_releases import pipelining as torch_pipelining
from gradconform.torch_releases.names import UnavailableError, require
from gradconform.user_input.values import SelectionError, current_folder_first, nearest

from .console import on_terminal, terminal, width, write
from .progress import FAILED, Areas, progress_bar
from .report_output import ReportOutput
from .target_queries import query_target

_C = TypeVar("_C", bound=Clause)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run of extra checks before any has run: its report, and its devices.

    ``run`` reports results as they arrive, and returns why it stopped early, or None. For slow checks, ``areas`` has
    the area of each check, and an area is reported when it ends.
    """

    report: Report
    place: tuple[str, str]
    run: Callable[[OnResult], str | None]
    areas: Mapping[str, str] = field(default_factory=dict)


def _judging(prepare: Callable[[argparse.Namespace], Prepared]) -> Callable[[argparse.Namespace], int]:
    """Return a command that runs the prepared run, and returns the exit code of the verdict."""

    @functools.wraps(prepare)
    def command(arguments: argparse.Namespace) -> int:
        with current_folder_first():
            prepared = prepare(arguments)
        report, output = prepared.report, ReportOutput.of(arguments)
        if output.shows_progress:
            write(opening(report, [prepared.place], width()))
        code = None
        try:
            with _progress(prepared, shown=output.shows_progress) as on_result:
                stopped = prepared.run(on_result)
        except KeyboardInterrupt:
            stopped, code = "interrupted", EXIT_INTERRUPTED
        return output.conclude(report, code=code, stopped=stopped)

    return command


def _report(  # noqa: PLR0913, PLR0917 (a report's first fields)
    target: dict[str, Any],
    extra: tuple[str, ...],
    planned: int,
    manifest: int,
    options: PipelineOptions | None = None,
    profile: str = "standard",
) -> Report:
    """Return the report before any check runs; ``extra`` describes the checks, ``options`` all options."""
    return Report(
        profile=profile,
        target=target,
        environment=environment(),
        seed=0 if options is None else options.seed,
        options={} if options is None else options.to_json(),
        manifest=manifest,
        planned=planned,
        extra=extra,
    )


def prepared_pipeline(arguments: argparse.Namespace) -> Prepared:
    """Return the prepared run for whole training steps, or for a target inside schedules."""
    if arguments.fixed and arguments.target != TORCH:
        msg = f"--fixed requires target torch, got {arguments.target!r}"
        raise SelectionError(msg)
    if arguments.schedule is None:
        return _training_steps(arguments)
    if arguments.profile is not None:
        msg = "--profile selects training steps, but --schedule runs schedules instead; omit one of them"
        raise SelectionError(msg)
    options = PipelineOptions.of(vars(arguments))
    arguments.ranks = arguments.ranks or 2
    _refuse_machines(arguments, arguments.ranks, f"--ranks {arguments.ranks}")
    require(*torch_pipelining.FOR_PIPELINES)
    backend = _backend(arguments, arguments.ranks)
    described = _described(looked_at(arguments.target, steps=False), fixed=arguments.fixed)
    names = [name for given in arguments.schedule for name in (NAMES if given == "all" else (given,))]
    absent = _lacking(names)
    cases = cases_of(
        [name for name in names if name not in absent],
        ranks=arguments.ranks,
        stages_per_rank=arguments.stages_per_rank,
        microbatches=arguments.microbatches,
    )
    chosen = _chosen(cases, arguments.checks)
    job = _job(arguments, chosen, backend)
    unavailable = [
        clause.result(job.device, job.dtype, status="unsupported", message=f"unavailable: {reason}")
        for name, reason in absent.items()
        for clause in clauses_of(name)
    ]
    sizes = tuple(dict.fromkeys(case.size for case in chosen))
    more = len(unavailable)
    report = _report(
        described,
        (*sizes, *_of(backend)),
        len(chosen) + more,
        len(cases) + more,
        replace(options, schedule=tuple(names)),
    )
    report.results += unavailable
    areas = {case.id: case.id.rpartition(".")[0] for case in chosen}
    return Prepared(report, (job.device, job.dtype), functools.partial(_run_pipeline, job, arguments), areas)


pipeline = _judging(prepared_pipeline)


def _training_steps(arguments: argparse.Namespace) -> Prepared:
    """Return the prepared run of training steps, for a runtime or for torch's with the target's functions."""
    given = {"--ranks": arguments.ranks, "--stages-per-rank": arguments.stages_per_rank}
    given |= {"--microbatches": arguments.microbatches}
    if wrong := [option for option, value in given.items() if value is not None]:
        msg = f"{', '.join(wrong)} requires --schedule; training steps have fixed sizes"
        raise SelectionError(msg)
    profile = arguments.profile or "quick"
    target_facts = looked_at(arguments.target, steps=True)
    cases = step_cases(profile)
    chosen = _chosen(cases, arguments.checks, {"standard": step_cases("standard")})
    sizes = sorted({case.composition.ranks for case in chosen})
    for ranks in sizes:
        _refuse_machines(arguments, ranks, f"training steps on {ranks} ranks")
    backend = _backend(arguments, sizes[-1])
    job = _job(arguments, chosen, backend, runtime=target_facts["runtime"])
    what = (f"training steps on {listed(list(map(str, sizes)))} ranks",)
    described = _described(target_facts, fixed=arguments.fixed)
    report = _report(
        described, (*what, *_of(backend)), len(chosen), len(cases), PipelineOptions.of(vars(arguments)), profile
    )
    areas = dict.fromkeys((case.id for case in chosen), "step")
    return Prepared(report, (job.device, job.dtype), functools.partial(_run_steps, job, chosen, arguments), areas)


def looked_at(target: str, *, steps: bool) -> dict[str, Any]:
    """Return whether a target is a runtime, and its report entry; the target is not imported in this process."""
    return query_target("gradconform.pipeline.training_step.runtimes:describe_runtime", target, steps=steps)


def _described(target_facts: Mapping[str, Any], *, fixed: bool) -> dict[str, Any]:
    """Return the report's entry on the target."""
    described = dict(target_facts["described"])
    return {**described, "name": f"{described['name']} with the right split"} if fixed else described


def _backend(arguments: argparse.Namespace, ranks: int) -> str:
    """Return the backend of the ranks, after testing that the device is usable and has room for them."""
    device_named(arguments.device, arguments.device_plugins or ())
    return backend_for(arguments.device, ranks // arguments.nnodes, share=arguments.ranks_share_device)


def _of(backend: str) -> Iterator[str]:
    """Yield the report's entry on a backend that is not the device's own."""
    if backend == HOST_COPIES:
        yield "gloo over copies on the CPU"


def _job(
    arguments: argparse.Namespace, cases: Sequence[Case | StepCase], backend: str, *, runtime: bool = False
) -> Job:
    return Job(
        target=arguments.target,
        cases=tuple(cases),
        device=arguments.device,
        dtype=str(dtype_named(arguments.dtype)).removeprefix("torch."),
        seed=arguments.seed,
        timeout=arguments.timeout,
        runtime=runtime,
        fixed=arguments.fixed,
        plugins=tuple(arguments.device_plugins or ()),
        backend=backend,
    )


def _run_steps(job: Job, cases: Sequence[StepCase], arguments: argparse.Namespace, on_result: OnResult) -> str | None:
    """Run the compositions; those with equal numbers of ranks share processes.

    Machines meet at a separate port for each number of ranks, counted from the given one: a machine that is still
    finishing may hold the previous port.
    """
    host, _, port = arguments.rdzv_endpoint.rpartition(":")
    for number, (ranks, some) in enumerate(groupby(cases, key=lambda case: case.composition.ranks)):
        machines = _machines(arguments, ranks)
        if arguments.nnodes > 1:
            machines = replace(machines, endpoint=f"{host}:{int(port) + number}", run=f"{machines.run}-{ranks}")
        stopped = run_pipeline(replace(job, cases=tuple(some)), machines, on_result)
        if stopped is not None:
            return stopped
    return None


@contextmanager
def _progress(prepared: Prepared, *, shown: bool) -> Iterator[OnResult]:
    """Yield a function that receives results: it adds them to the report, and shows them by area."""
    of_checks = prepared.areas
    if not of_checks or not shown:
        yield prepared.report.results.append
        return
    console = terminal() if on_terminal() else None
    areas = Areas(list(of_checks.values()), lambda result: of_checks[result.check], console)
    with progress_bar(console, next(iter(of_checks)), len(of_checks), name_width=34, counted="failed") as advance:

        def on_result(result: Result) -> None:
            prepared.report.results.append(result)
            areas.add(result)
            advance(result.check, done=1, counts=result.status in FAILED)

        try:
            yield on_result
        finally:
            areas.flush()


def _lacking(names: list[str]) -> dict[str, str]:
    """Return the schedules that this torch lacks, with reasons; raise if it has none of the named ones."""
    absent = lacking(names)
    if absent and len(absent) == len(set(names)):
        raise UnavailableError("; ".join(absent.values()))
    if any(name.endswith(".csv") for name in names):
        require(torch_pipelining.RUNTIME, torch_pipelining.LOAD_CSV)
    return absent


def _refuse_machines(arguments: argparse.Namespace, ranks: int, what: str) -> None:
    """Raise if the machines cannot have equal numbers of ranks, or have no endpoint to meet at."""
    if ranks % arguments.nnodes:
        msg = f"{what} cannot be divided evenly by --nnodes {arguments.nnodes}; change one of the numbers"
        raise SelectionError(msg)
    host, _, port = arguments.rdzv_endpoint.rpartition(":")
    if arguments.nnodes > 1 and not (host and port.isdecimal() and int(port)):
        where = "a machine and a free port on it"
        got = repr(arguments.rdzv_endpoint)
        msg = f"--nnodes {arguments.nnodes} requires --rdzv-endpoint HOST:PORT, {where}; got {got}"
        raise SelectionError(msg)


def _chosen(
    cases: tuple[_C, ...], patterns: list[str] | None, profiles: Mapping[str, tuple[_C, ...]] | None = None
) -> tuple[_C, ...]:
    """Return the cases whose id matches one of the patterns; raise for a pattern that matches none.

    If one of the other ``profiles`` has such a case, the message says so.
    """
    for pattern in patterns or ():
        if any(fnmatchcase(case.id, pattern) for case in cases):
            continue
        for profile, others in (profiles or {}).items():
            if any(fnmatchcase(case.id, pattern) for case in others):
                msg = f"--checks {pattern!r} matches no check of this profile; add --profile {profile}"
                raise SelectionError(msg)
        known = [case.id for case in cases]
        msg = f"--checks {pattern!r} matches no check; nearest: {nearest(pattern, known)[:300]}"
        raise SelectionError(msg)
    return tuple(case for case in cases if any(fnmatchcase(case.id, pattern) for pattern in patterns or ("*",)))


def _run_pipeline(job: Job, arguments: argparse.Namespace, on_result: OnResult) -> str | None:
    return run_pipeline(job, _machines(arguments, arguments.ranks), on_result)


def _machines(arguments: argparse.Namespace, ranks: int) -> Machines:
    return Machines(ranks=ranks, machines=arguments.nnodes, endpoint=arguments.rdzv_endpoint, run=arguments.rdzv_id)


def _without_processes(  # noqa: PLR0913 (a report's first fields)
    subject: Any,
    checks: ExtraChecks,
    arguments: argparse.Namespace,
    what: tuple[str, ...],
    dtype: str,
    *,
    device: str = "cpu",
) -> Prepared:
    """Return the prepared run on ``subject``: the report, the device, and the function that runs ``checks``."""
    target = {"text": arguments.target, "name": subject.name, "version": None, "file": None, "sha256": None}

    def run(on_result: OnResult) -> None:
        for result in run_extra(subject, checks, dtype=dtype, device=device):
            on_result(result)

    return Prepared(_report(target, what, len(checks), len(checks)), (device, dtype), run)


@_judging
def schedule_text(arguments: argparse.Namespace) -> Prepared:
    """Return the prepared run on a runtime's work on schedules."""
    schedules = _schedules(arguments.schedule)
    what = tuple(f"{one.name}: {one.size}" for one in schedules)
    return _without_processes(schedule_text_named(arguments.target), checks_of(schedules), arguments, what, "text")


def _schedules(given: list[str] | None) -> list[Schedule]:
    """Return the named schedules; raise ``ScheduleError`` for a name or a file that gives none."""
    found = []
    for name in given or RECORDED:
        if name.endswith(".csv"):
            found.append(read_csv(name))
        elif name in RECORDED:
            found.append(recorded(name))
        else:
            msg = (
                f"unknown schedule {name!r}; name a CSV file or a recorded schedule; nearest: {nearest(name, RECORDED)}"
            )
            raise ScheduleError(msg)
    return found


@_judging
def stage_objects(arguments: argparse.Namespace) -> Prepared:
    """Return the prepared run on stage objects."""
    device = device_named(arguments.device, arguments.device_plugins or ())
    subject = Subject(stage_objects_named(arguments.target), device)
    what = ("stage objects on one process",)
    return _without_processes(subject, CHECKS, arguments, what, "float32", device=arguments.device)
