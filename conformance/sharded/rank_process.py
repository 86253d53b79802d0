"""The work of one rank of a sharded stage: it runs the rows of a job together with the others, and rank 0 judges."""

from __future__ import annotations

import time
import traceback
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gradconform.adapter import UnsupportedError
from gradconform.drive.observation import Raised
from gradconform.judge.finding import Finding, error_ratios_in, findings_in
from gradconform.pipeline.exchange import Outcome
from gradconform.pipeline.joined_rank import JoinedRank, run_rank_of
from gradconform.pipeline.start_folder import Start
from gradconform.reference.autograd import AutogradAdapter
from gradconform.results import finite
from gradconform.target.resolve import resolve
from gradconform.trial.mesh import Mesh
from gradconform.user_input.values import current_folder_first

from .batches import batches_of
from .cases import Row, ShardedJob, calls_of, check_id, mesh_of
from .described import called, described, whole_of
from .judging import Judge
from .on_rank import Drive, Shown
from .parts import Parts, Placed, refuse_gaps
from .stage import DescriptionError
from .whole import Oracle


class RankProcess(JoinedRank):
    """One rank with all its rows."""

    def __init__(self, job: ShardedJob, start: Start) -> None:
        """Join the process group and import the stage."""
        super().__init__(job, start)
        self.job = job
        #: A group for the kit's own messages: unequal collectives of the stage do not reach it.
        self.apart = dist.new_group(backend="gloo")
        self._meshes: dict[str, DeviceMesh] = {}
        self.marker.note("importing the sharded stage")
        with current_folder_first():
            self.described = described(job.target)
            self.adapter: Any = resolve(job.backward).adapter if job.backward else AutogradAdapter()

    def outcomes_of(self, row: Row) -> list[Outcome]:
        """Return the outcome of a row; those of its checks come first, from the rank that judges."""
        started = time.perf_counter()
        try:
            return [*self._judged(row, started), Outcome(case=row.id, rank=self.rank)]
        except DescriptionError as error:
            return [Outcome(case=row.id, rank=self.rank, refused=str(error))]
        except UnsupportedError as error:
            return [Outcome(case=row.id, rank=self.rank, unsupported=f"refused: {error}")]
        except BaseException as error:  # noqa: BLE001 (whatever the stage raises is this row's verdict)
            at, cause = time.time(), str(Raised.of(error))
            return [Outcome(case=row.id, rank=self.rank, raised=traceback.format_exc(), cause=cause, at=at)]

    def _judged(self, row: Row, started: float) -> list[Outcome]:
        (self.folder / calls_of(self.rank)).unlink(missing_ok=True)
        mesh, words = mesh_of(row), self.described.words
        stage = self.described.create(row.options)
        seed = self.job.seed
        whole = whole_of(stage, words, seed).to(dtype=self.dtype)
        module, parts, everyone = self._placed(stage, whole, mesh)
        batches = batches_of(stage, words, whole, row, self.dtype, seed)
        drive = Drive(
            stage, words, module, parts=parts, whole=whole, row=row, mesh=mesh, device_mesh=self._mesh(mesh),
            rank=self.rank, adapter=self.adapter, device=self.device,
        )  # fmt: skip
        self.marker.note("the start of its program")
        shown: Shown | DescriptionError
        try:
            with torch.random.fork_rng(devices=[]):
                shown = drive.show(batches, self.folder / calls_of(self.rank), self.marker.note, self.marker.within)
        except DescriptionError as error:
            self.write([Outcome(case=row.id, rank=self.rank, refused=str(error))])  # others may wait in a collective
            shown = error
        self.marker.note("the end of its program")
        found = self._from_all(shown)
        refused = next((one for one in found if isinstance(one, DescriptionError)), None)
        if refused is not None:
            raise refused
        if self.rank:
            return []
        oracle = Oracle(whole, row, batches, clips=hasattr(stage, "grad_norm"))
        judge = Judge(stage, words, mesh=mesh, row=row, oracle=oracle, shown=found, parts=everyone, whole=whole)
        return self._outcomes(row, judge, started)

    def _outcomes(self, row: Row, judge: Judge, started: float) -> list[Outcome]:
        found: list[Outcome] = []
        for kind in self.job.kinds:
            judged = list(judge.judged(kind))
            findings: list[Finding] = findings_in(judged)
            error_ratios = error_ratios_in(judged)
            found.append(
                Outcome(
                    case=check_id(kind, row.id),
                    rank=self.rank,
                    findings=tuple(findings),
                    error_ratio=finite(max(error_ratios, default=None)),
                    bit_equal=not findings and not any(error_ratios),
                    duration_s=time.perf_counter() - started if not found else 0.0,
                )
            )
        return found

    def _placed(self, stage: Any, whole: torch.nn.Module, mesh: Mesh) -> tuple[torch.nn.Module, Parts, list[Parts]]:
        """Return this rank's module with the whole stage's values, its parts, and those of all ranks."""
        words = self.described.words
        module: Any = None
        try:
            with torch.random.fork_rng(devices=[]), self.marker.within():
                torch.manual_seed(self.job.seed)
                module = called(f"{words}: sharded()", stage.sharded, self._mesh(mesh))
            refuse_no_module(words, module)
            module.to(device=self.device, dtype=self.dtype)
            own = Placed(stage, words, module, whole, mesh, self.rank).parts
        except DescriptionError as error:
            own = Parts(mistake=str(error))
        except UnsupportedError as error:
            own = Parts(refused=str(error) or "without a reason")
        self.marker.note("the creation of the stage on the other ranks")
        everyone: list[Parts] = self._from_all(own)
        mistake = next((parts.mistake for parts in everyone if parts.mistake), "")
        if mistake:
            raise DescriptionError(mistake)
        if refused := next((parts.refused for parts in everyone if parts.refused), ""):
            raise UnsupportedError(refused)
        refuse_gaps(words, whole, everyone)
        return module, own, everyone

    def _mesh(self, mesh: Mesh) -> DeviceMesh:
        if mesh.word not in self._meshes:
            sizes, names = tuple(mesh.sizes.values()), tuple(mesh.sizes)
            self._meshes[mesh.word] = init_device_mesh(self.device.type, sizes, mesh_dim_names=names)
        return self._meshes[mesh.word]

    def _from_all(self, own: Any) -> list[Any]:
        """Return the objects of all ranks, in their order."""
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, own, group=self.apart)
        return found


def refuse_no_module(words: str, module: object) -> None:
    """Raise if ``sharded()`` returned something else than a module."""
    if not isinstance(module, torch.nn.Module):
        msg = f"{words}: sharded() returned {type(module).__name__}; expected a torch.nn.Module"
        raise DescriptionError(msg)


def run_rank(start: Start) -> None:
    """Run the job of a start."""
    run_rank_of(start, lambda text: RankProcess(ShardedJob.from_json(text), start))
