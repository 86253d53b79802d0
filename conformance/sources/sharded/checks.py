"""Prepares a run of a sharded stage: plans its rows, and runs them in ranks that torch's launcher starts."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradconform.devices.device import device_of
from gradconform.devices.dtypes import dtype_named
from gradconform.devices.prepared import device_named
from gradconform.diagnosis.cause import listed
from gradconform.pipeline.cpu_copies import HOST_COPIES
from gradconform.pipeline.placement import backend_for
from gradconform.pipeline.ranks import Machines, refuse_machines
from gradconform.run.prepared_run import Planned, PreparedRun
from gradconform.run.target_queries import query_target
from gradconform.sharded.cases import KINDS, Row, RowCheck, ShardedJob, checks_of, mesh_of, row_of
from gradconform.sharded.dimensions import dimensions_of, rows_of
from gradconform.sharded.runs import run_rows, wanted_rows
from gradconform.target.resolve import commit_of
from gradconform.trial.mesh import Mesh
from gradconform.user_input.values import SelectionError

from . import SOURCE

if TYPE_CHECKING:
    from gradconform.results import Place, Report, Result
    from gradconform.run.execution import OnResult, OnStart


def check_sharded_stage(stage: object, **options: Any) -> Report:
    """Return the report on a stage that is spread over ranks; a stage that is wrong raises nothing.

    ``stage`` is what ``gradconform sharded`` takes, ``my_layers.py:ColumnRowMLP``, or a class of
    :class:`gradconform.ShardedStage` at the top of a module: every rank imports that module. The options are those of
    the command: ``profile``, ``checks``, ``ranks``, ``backward``, ``device``, ``dtype``, ``seed``, ``timeout``.

    Raises ``ValueError`` for an unknown stage or option value, and ``gradconform.exits.RunStoppedError`` for a
    description that does not fit the stage, such as a wrong placement.
    """
    run = prepare(SOURCE.values.of(_named(stage), **options))
    results: dict[Place, Result] = {}

    def keep(result: Result) -> None:
        results[result.place] = result

    run.run(keep, on_start=lambda _: None, places=run.header.places)
    return run.header.report_of(results)


def _named(stage: object) -> str:
    """Return the name by which another process finds a stage."""
    if isinstance(stage, str):
        return stage
    own = stage if isinstance(stage, type) else type(stage)
    file = inspect.getsourcefile(own)
    if own is not stage or file is None or "." in own.__qualname__:
        msg = f"expected the name of a sharded stage, or a class at the top of a module; got {stage!r:.80}"
        raise SelectionError(msg)
    return f"{file}:{own.__qualname__}"


def prepare(options: Any) -> PreparedRun:
    """Return the prepared run of a sharded stage."""
    facts = facts_of(options)
    meshes = _meshes(options, facts)
    has = _backward(options)
    dimensions = dimensions_of(facts, meshes, full=has["full"], split=has["split"])
    profile = options.profile or "quick"
    kinds = [kind for kind in KINDS if kind not in {"norm", "buffers"} or facts[kind]]
    rows = {name: _rows(dimensions, name) for name in dict.fromkeys((profile, "standard"))}
    checks = checks_of(rows[profile], kinds)
    dtype = str(dtype_named(options.dtype)).removeprefix("torch.")
    device = device_of(device_named(options.device, options.device_plugins))
    planned = Planned(
        clauses=checks,
        target=_described(options, facts),
        lines=(),
        device=options.device,
        dtype=dtype,
        profile=profile,
        elsewhere={"standard": [one.id for one in checks_of(rows["standard"], kinds)]} if profile == "quick" else {},
    )
    sizes = sorted({mesh_of(one.row).ranks for one in planned.selected(options) if isinstance(one, RowCheck)})
    for ranks in sizes:
        refuse_machines(options, ranks, f"a mesh of {ranks} ranks")
    backend = backend_for(options.device, sizes[-1] // options.nnodes, share=options.ranks_share_device)
    lines = [f"a sharded stage on {listed(list(map(str, sizes)))} ranks, {facts['size']}"]
    lines += [f"backward by {options.backward}"] if options.backward else []
    lines += ["gloo over copies on the CPU"] if backend == HOST_COPIES else []
    return PreparedRun(
        options, replace(planned, lines=tuple(lines)), _Work(options, checks, dtype, (backend, device.reads_views))
    )


def facts_of(options: Any) -> dict[str, Any]:
    """Return what a plan needs to know about the stage, which is not imported in this process."""
    return query_target("gradconform.sharded.described:describe_stage", str(options.target))


def _meshes(options: Any, facts: Mapping[str, Any]) -> list[Mesh]:
    """Return the meshes of the run, those with the fewest ranks first."""
    found = [Mesh(sizes) for sizes in facts["meshes"]]
    if options.ranks is None:
        return found
    own = [mesh for mesh in found if mesh.ranks == options.ranks]
    if not own:
        offered = listed([str(ranks) for ranks in sorted({mesh.ranks for mesh in found})])
        msg = f"--ranks {options.ranks}: the meshes of {options.target} have {offered} ranks; add a size to its mesh"
        raise SelectionError(msg)
    return own


def _backward(options: Any) -> dict[str, bool]:
    """Return which backward the run has, full or split.

    Plain autograd has no split: it would run the graph twice, which a stage's own Function may not support.
    """
    if not options.backward:
        return {"full": True, "split": False}
    return query_target("gradconform.sharded.described:describe_backward", str(options.backward))


def _rows(dimensions: Any, profile: str) -> list[Row]:
    """Return the rows of a profile, fewest ranks first."""
    rows = [row_of(name, dimensions, words) for name, words in rows_of(dimensions, profile).items()]
    return sorted(rows, key=lambda row: mesh_of(row).ranks)


def _described(options: Any, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report's entry on the stage."""
    file = facts["file"]
    shown = None if file is None or not Path(file).is_file() else file
    return {
        "text": str(options.target), "name": facts["name"], "version": None, "file": shown, "sha256": facts["sha256"],
        "commit": commit_of(shown),
    }  # fmt: skip


class _Work:
    """Runs rows in ranks that torch's launcher starts; rows of equal numbers of ranks share processes."""

    def __init__(self, options: Any, checks: Sequence[RowCheck], dtype: str, placed: tuple[str, str]) -> None:
        self._options, self._checks, self._dtype, (self._backend, self._reads_views) = options, checks, dtype, placed

    def __call__(self, wanted: Collection[str], on_result: OnResult, on_start: OnStart) -> str | None:
        """Run the wanted checks; machines meet at another port for each number of ranks, as for a pipeline."""
        rows = wanted_rows(self._checks, wanted)
        known = {check.row.id: check.row for check in self._checks}
        for number, (ranks, some) in enumerate(groupby((known[name] for name in rows), lambda row: mesh_of(row).ranks)):
            own = tuple(some)
            kinds = tuple(dict.fromkeys(check.kind for row in own for check in rows[row.id]))
            job = ShardedJob(
                target=str(self._options.target), backward=self._options.backward or "", cases=own, kinds=kinds,
                device=self._options.device, dtype=self._dtype, seed=self._options.seed,
                timeout=self._options.timeout, plugins=self._options.device_plugins, backend=self._backend,
                reads_views=self._reads_views,
            )  # fmt: skip
            machines = Machines.of(self._options, ranks, number)
            stopped = run_rows(job, rows, machines, on_result, on_start)
            if stopped is not None:
                return stopped
        return None
