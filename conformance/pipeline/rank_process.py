"""The work of one rank: it runs the cases of a job together with the others.

It reads ``job.json`` in the folder of a start and writes ``rank-R.ndjson`` (an outcome per case) and ``rank-R.mark``.
At a stack request or a fatal error, it also writes ``rank-R.stack``.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from gradconform.adapter import UnsupportedError
from gradconform.drive.observation import Raised
from gradconform.fixtures.schedules.order import placed_actions
from gradconform.judge.finding import Finding, Judged, Measured, error_ratios_in, findings_in
from gradconform.reference.install_in_torch import install
from gradconform.results import finite
from gradconform.runtime import Runtime
from gradconform.target.functions import FULL, SPLIT, FunctionsAdapter
from gradconform.target.resolve import resolve
from gradconform.torch_releases.names import UnavailableError
from gradconform.torch_releases.pipelining import EVALUATION, connect, wait_for_all
from gradconform.user_input.values import current_folder_first

from .cases import BY_NAME, Case
from .cpu_copies import HOST_COPIES
from .exchange import Job, Outcome
from .joined_rank import JoinedRank, run_rank_of
from .start_folder import Start
from .torch_runtime import make_schedule, make_stages, put_under_test
from .training_step.composition import StepCase, unclaimed_values
from .training_step.on_rank import Place, judged_step, lacking
from .training_step.runtimes import TORCH, runtime_named
from .whole_model import Seen, findings_of, make_batch, make_stage, run_whole_model, stage_cases


class RankProcess(JoinedRank):
    """One rank with all its cases."""

    def __init__(self, job: Job, start: Start) -> None:
        """Join the process group and install the target."""
        super().__init__(job, start)
        self.job = job
        # Every rank makes every group, as torch requires.
        self.alone = [dist.new_group([rank]) for rank in range(self.ranks)][self.rank]
        self.functions: Mapping[str, Callable[..., Any]] = {}
        self.runtime: Runtime | None = None
        self.marker.note("importing the target")
        with current_folder_first():
            if job.runtime:
                self.runtime = runtime_named(job.target)
            else:
                adapter = resolve(job.target).adapter
                self.functions = adapter.functions if isinstance(adapter, FunctionsAdapter) else {}
                put_under_test(self.functions, self.marker)
        if job.fixed:
            install()

    def outcomes_of(self, case: Case | StepCase) -> list[Outcome]:
        """Return the outcome of a case."""
        return [self._outcome(case)]

    def _outcome(self, case: Case | StepCase) -> Outcome:
        started = time.perf_counter()
        missing = self._missing(case)
        if missing:
            return Outcome(case=case.id, rank=self.rank, unsupported=missing)
        try:
            judged = list(self._judged_step(case) if isinstance(case, StepCase) else self._judged(case))
        except UnavailableError as error:
            return Outcome(case=case.id, rank=self.rank, unsupported=f"unavailable: {error}")
        except UnsupportedError as error:
            return Outcome(case=case.id, rank=self.rank, unsupported=f"the runtime refuses it: {error}")
        except BaseException as error:  # noqa: BLE001 (whatever torch or the target raises is this case's verdict)
            at, cause = time.time(), str(Raised.of(error))
            return Outcome(case=case.id, rank=self.rank, raised=traceback.format_exc(), cause=cause, at=at)
        found, error_ratios = findings_in(judged), error_ratios_in(judged)
        found = [replace(finding, where=f"rank {self.rank}, {finding.where}") for finding in found]
        return Outcome(
            case=case.id,
            rank=self.rank,
            findings=tuple(found),
            error_ratio=finite(max(error_ratios, default=None)),
            bit_equal=not found and not any(error_ratios),
            duration_s=time.perf_counter() - started,
        )

    def _judged_step(self, case: StepCase) -> Judged:
        """Run a training step and yield its findings."""
        runtime = self._runtime_of(case)
        place = Place(
            rank=self.rank, device=self.device, dtype=self.dtype, seed=self.job.seed, note=self.marker.note,
            within=self.marker.within if self.runtime else nullcontext,
        )  # fmt: skip
        return judged_step(case.composition, runtime, place)

    def _runtime_of(self, case: StepCase) -> Runtime:
        """Return the runtime of a training step: the judged one, or torch's with the judged functions."""
        if case.target:
            return runtime_named(case.target)
        return self.runtime or runtime_named(TORCH)

    @property
    def _carrier(self) -> str:
        """Return the backend that carries the ranks' messages."""
        return "gloo" if self.job.backend == HOST_COPIES else self.job.backend

    def _missing(self, case: Case | StepCase) -> str:
        """Return a requirement of the case that the target or its runtime lacks; empty if there is none."""
        if isinstance(case, StepCase):
            values = unclaimed_values(case, self._runtime_of(case).claims)
            if values:
                return f"the runtime does not claim {values}"
            lack = lacking(case.composition, self.dtype)
            return lack if lack or self.runtime else self._missing_functions(case.composition.rows)
        return self._missing_functions(case.rows)

    def _missing_functions(self, rows: Sequence[Sequence[str]]) -> str:
        """Return which of torch's three functions a schedule needs and the target lacks; empty if there is none."""
        cells = "".join(cell for row in rows for cell in row)
        needed = ((FULL, "B"), (SPLIT[0], "I"), (SPLIT[1], "W"))
        # The first stage of torch's split does all its work in the full backward, in W.
        missing = [name for name, letter in needed if name not in self.functions and (letter in cells or name == FULL)]
        return f"the schedule needs {' and '.join(missing)}, which the target does not have" if missing else ""

    def _judged(self, case: Case) -> list[Finding | Measured]:
        scenario = BY_NAME[case.scenario]
        if not scenario.alone:
            wait_for_all(self._carrier)
        stages = 1 + max(stage for row in case.rows for stage in _stages_in(row))
        sizes, seed = (scenario, stages, case.microbatches), self.job.seed
        plain = run_whole_model(*sizes, dtype=self.dtype, device=self.device, seed=seed)
        wide = run_whole_model(*sizes, dtype=self.dtype, device=torch.device("cpu"), seed=seed, wide=True)
        own = _stages_in(case.rows[0 if scenario.alone else self.rank])
        cases = stage_cases(scenario, stages)
        modules = {i: make_stage(cases[i], i, dtype=self.dtype, device=self.device, seed=seed) for i in own}
        group = self.alone if scenario.alone else None
        made = make_stages(modules, stages, self.device, group, self.marker.note)
        schedule = make_schedule(case, scenario, made)
        connect(made, self._carrier)
        steps = {"train": schedule.step}
        if "eval" in scenario.steps:
            steps["eval"] = EVALUATION.find(schedule)
        judged: list[Finding | Measured] = []
        right = iter(zip(plain, wide, strict=True))
        for number, step in enumerate(scenario.steps):
            if step == "zero_grad":
                for module in modules.values():
                    module.zero_grad()
                continue
            batch = make_batch(scenario, number, case.microbatches, dtype=self.dtype, seed=seed)
            batch = batch.map(lambda value: value.to(self.device))
            losses: list[torch.Tensor] = []
            first, last = 0 in own, stages - 1 in own
            output = steps[step](
                *((batch.x,) if first else ()),
                target=batch.target if last else None,
                losses=losses if last else None,
                **batch.kwargs,
            )
            seen = Seen(f"step {number + 1} ({step})", modules, output, losses if last else None)
            judged += findings_of(seen, *next(right))
        return judged


def _stages_in(row: tuple[str, ...]) -> list[int]:
    """Return the stages of a rank, from the cells of its row: each action begins with its stage."""
    return sorted({placed.action.stage for placed in placed_actions([row])[0]})


def run_rank(start: Start) -> None:
    """Run the job of a start."""
    run_rank_of(start, lambda text: RankProcess(Job.from_json(text), start))
