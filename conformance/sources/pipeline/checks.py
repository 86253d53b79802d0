"""Prepares a run of whole training steps, or of a target inside schedules, on several processes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from gradconform.devices.device import device_of
from gradconform.devices.dtypes import dtype_named
from gradconform.devices.prepared import device_named
from gradconform.diagnosis.cause import listed
from gradconform.fixtures.schedules.from_torch import NAMES
from gradconform.pipeline.cases import Case, cases_of, clauses_of, lacking
from gradconform.pipeline.cpu_copies import HOST_COPIES
from gradconform.pipeline.exchange import Job
from gradconform.pipeline.launch import run_pipeline
from gradconform.pipeline.placement import backend_for
from gradconform.pipeline.ranks import Machines, refuse_machines
from gradconform.pipeline.training_step.composition import StepCase, step_cases
from gradconform.pipeline.training_step.runtimes import TORCH
from gradconform.run.prepared_run import Planned, PreparedRun
from gradconform.run.target_queries import query_target
from gradconform.torch_releases import pipelining as torch_pipelining
from gradconform.torch_releases.names import UnavailableError, require
from gradconform.user_input.values import PROFILES, SelectionError

from . import PipelineOptions

if TYPE_CHECKING:
    from gradconform.run.execution import OnResult, OnStart


def prepare(options: PipelineOptions) -> PreparedRun:
    """Return the prepared run for whole training steps, or for a target inside schedules."""
    if options.fixed and options.target != TORCH:
        msg = f"--fixed requires target torch, got {options.target!r}"
        raise SelectionError(msg)
    return _schedules(options) if options.schedule else _training_steps(options)


def _schedules(options: PipelineOptions) -> PreparedRun:
    if options.profile is not None:
        msg = "--profile selects training steps, but --schedule runs schedules instead; omit one of them"
        raise SelectionError(msg)
    ranks = options.ranks or 2
    refuse_machines(options, ranks, f"--ranks {ranks}")
    require(*torch_pipelining.FOR_PIPELINES)
    backend, reads_views = _placed(options, ranks)
    target = _described(look_at(options.target, steps=False), fixed=options.fixed)
    names = [name for given in options.schedule for name in (NAMES if given == "all" else (given,))]
    absent = _lacking(names)
    cases = cases_of(
        [name for name in names if name not in absent],
        ranks=ranks,
        stages_per_rank=options.stages_per_rank,
        microbatches=options.microbatches,
    )
    dtype = str(dtype_named(options.dtype)).removeprefix("torch.")
    unavailable = [
        clause.result(options.device, dtype, status="unsupported", message=f"unavailable: {reason}")
        for name, reason in absent.items()
        for clause in clauses_of(name)
    ]
    job = _job(options, dtype, (backend, reads_views), runtime=False)
    work = _Work(options, cases, job, ranks=ranks)
    sizes = tuple(dict.fromkeys(case.size for case in cases))
    planned = Planned(
        clauses=cases,
        target=target,
        lines=(*sizes, *_of(backend)),
        device=options.device,
        dtype=dtype,
        settled=unavailable,
    )
    return PreparedRun(options.but(schedule=tuple(names)), planned, work)


def _training_steps(options: PipelineOptions) -> PreparedRun:
    """Return the prepared run of training steps, for a runtime or for torch's with the target's functions."""
    given = {"--ranks": options.ranks, "--stages-per-rank": options.stages_per_rank}
    given |= {"--microbatches": options.microbatches}
    if wrong := [option for option, value in given.items() if value is not None]:
        msg = f"{', '.join(wrong)} requires --schedule; training steps have fixed sizes"
        raise SelectionError(msg)
    profile = options.profile or "quick"
    facts = look_at(options.target, steps=True)
    cases = step_cases(profile)
    elsewhere = {name: [case.id for case in step_cases(name)] for name in ("standard", "full")}
    dtype = str(dtype_named(options.dtype)).removeprefix("torch.")
    planned = Planned(
        clauses=cases,
        target=_described(facts, fixed=options.fixed),
        lines=(),
        device=options.device,
        dtype=dtype,
        profile=profile,
        elsewhere=elsewhere,
    )
    sizes = sorted({case.composition.ranks for case in planned.selected(options) if isinstance(case, StepCase)})
    for ranks in sizes:
        refuse_machines(options, ranks, f"training steps on {ranks} ranks")
    backend, reads_views = _placed(options, sizes[-1])
    what = f"training steps on {listed(list(map(str, sizes)))} ranks"
    job = _job(options, dtype, (backend, reads_views), runtime=facts["runtime"])
    work = _Work(options, cases, job, ranks=None)
    return PreparedRun(options, replace(planned, lines=(what, *_of(backend))), work)


def catalogue() -> Iterator[tuple[StepCase, str]]:
    """Yield each training step, with the smallest profile that has it, as options."""
    yielded: set[str] = set()
    for profile in PROFILES:
        for case in step_cases(profile):
            if case.id not in yielded:
                yielded.add(case.id)
                yield case, f"--profile {profile}"


def look_at(target: object, *, steps: bool) -> dict[str, Any]:
    """Return whether a target is a runtime, and its report entry; the target is not imported in this process."""
    return query_target("gradconform.pipeline.training_step.runtimes:describe_runtime", str(target), steps=steps)


def _described(facts: Mapping[str, Any], *, fixed: bool) -> dict[str, Any]:
    """Return the report's entry on the target."""
    described = dict(facts["described"])
    return {**described, "name": f"{described['name']} with the right split"} if fixed else described


def _placed(options: PipelineOptions, ranks: int) -> tuple[str, str]:
    """Return the backend of the ranks, and how they read views on the device, after testing that it is usable.

    It must have room for the ranks.
    """
    device = device_of(device_named(options.device, options.device_plugins))
    return backend_for(options.device, ranks // options.nnodes, share=options.ranks_share_device), device.reads_views


def _job(options: PipelineOptions, dtype: str, placed: tuple[str, str], *, runtime: bool) -> Job:
    """Return the job of the ranks without its cases."""
    backend, reads_views = placed
    return Job(
        target=str(options.target),
        cases=(),
        device=options.device,
        dtype=dtype,
        seed=options.seed,
        timeout=options.timeout,
        runtime=runtime,
        fixed=options.fixed,
        plugins=options.device_plugins,
        reads_views=reads_views,
        backend=backend,
    )


def _of(backend: str) -> Iterator[str]:
    """Yield the report's entry on a backend that is not the device's own."""
    if backend == HOST_COPIES:
        yield "gloo over copies on the CPU"


class _Work:
    """Runs cases in ranks that torch's launcher starts; ``ranks`` is their number, None if each case has its own."""

    def __init__(
        self, options: PipelineOptions, cases: Sequence[Case | StepCase], job: Job, *, ranks: int | None
    ) -> None:
        self._options, self._cases, self._job, self._ranks = options, cases, job, ranks

    def __call__(self, wanted: Collection[str], on_result: OnResult, on_start: OnStart) -> str | None:
        """Run the wanted cases; those with equal numbers of ranks share processes.

        Machines meet at a separate port for each number of ranks, counted from the given one: a machine that is still
        finishing may hold the previous port.
        """
        cases = [case for case in self._cases if case.id in wanted]
        for number, (ranks, some) in enumerate(groupby(cases, key=self._ranks_of)):
            machines = Machines.of(self._options, ranks, None if self._ranks is not None else number)
            stopped = run_pipeline(replace(self._job, cases=tuple(some)), machines, on_result, on_start)
            if stopped is not None:
                return stopped
        return None

    def _ranks_of(self, case: Case | StepCase) -> int:
        return case.composition.ranks if isinstance(case, StepCase) else self._ranks or 0


def _lacking(names: list[str]) -> dict[str, str]:
    """Return the schedules that this torch lacks, with reasons; raise if it has none of the named ones."""
    absent = lacking(names)
    if absent and len(absent) == len(set(names)):
        raise UnavailableError("; ".join(absent.values()))
    if any(name.endswith(".csv") for name in names):
        require(torch_pipelining.RUNTIME, torch_pipelining.LOAD_CSV)
    return absent
