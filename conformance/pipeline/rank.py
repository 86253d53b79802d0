"""The process of one rank: ``python -m gradconform.pipeline.rank FOLDER``, started by torch's launcher.

It reads ``question.json`` in the folder and writes ``rank-R.ndjson`` (a record per case), ``rank-R.mark`` and, where it
hangs, ``rank-R.stack``.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from gradconform.beside import Held
from gradconform.cli.current_folder import current_folder_first
from gradconform.devices import dtype_named
from gradconform.functions import FULL, SPLIT, FunctionsAdapter
from gradconform.judge.finding import Finding
from gradconform.pipeline.alarm import Alarm
from gradconform.pipeline.data import make_batch, make_stage, stage_cases
from gradconform.pipeline.judging import Seen, findings_of
from gradconform.pipeline.marks import Mark, Marker
from gradconform.pipeline.orphan import end_with
from gradconform.pipeline.question import Case, Question
from gradconform.pipeline.records import Record
from gradconform.pipeline.runtime import make_schedule, make_stages, put_under_test
from gradconform.pipeline.scenarios import BY_NAME, Scenario
from gradconform.pipeline.whole_model import StepOfWhole, run_whole_model
from gradconform.results import finite
from gradconform.targets import resolve

#: The others wait for a rank that hangs a little longer than it takes to be noticed, so that it is the one to end.
_PATIENCE_S = 10


class RankProcess:
    """One rank with all its cases."""

    def __init__(self, question: Question, folder: Path) -> None:
        """Join the process group and put the target under test."""
        self.question, self.folder = question, folder
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.marker = Marker(folder / f"rank-{self.rank}.mark")
        self.marker.put(Mark("", "joining the process group"))
        self.device = _device_of(question.device, int(os.environ["LOCAL_RANK"]))
        self.dtype = dtype_named(question.dtype)
        dist.init_process_group(
            dist.get_default_backend_for_device(self.device),
            timeout=timedelta(seconds=question.timeout + _PATIENCE_S),
        )
        # Every rank makes every group: that is how torch makes one.
        self.alone = [dist.new_group([rank]) for rank in range(self.ranks)][self.rank]
        with current_folder_first():
            adapter = resolve(question.target).adapter
        self.functions = adapter.functions if isinstance(adapter, FunctionsAdapter) else {}
        self.alarm = Alarm(question.timeout, (folder / f"rank-{self.rank}.stack").open("w", encoding="utf-8"))
        put_under_test(self.functions, self.marker, self.alarm)

    def run(self) -> None:
        """Run every case and write a record of each; end the process where one raises, since the others wait for it."""
        records = (self.folder / f"rank-{self.rank}.ndjson").open("a", encoding="utf-8")
        for case in self.question.cases:
            self.marker.put(Mark(case.id))
            self.alarm.begin()
            record = self._record(case)
            records.write(record.to_line())
            records.flush()
            if record.raised is not None:
                os._exit(1)
            self.marker.put(Mark(case.id, "the end of the case"))
            self._share(record)
        self.alarm.end()
        self.marker.put(Mark("", "leaving the process group"))
        dist.destroy_process_group()

    def _share(self, record: Record) -> None:
        """Wait for the other ranks, and write down what those of other machines saw: each machine reports the whole."""
        lines: list[str] = [""] * self.ranks
        dist.all_gather_object(lines, record.to_line())
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        if int(os.environ["LOCAL_RANK"]) == 0:
            for rank in set(range(self.ranks)) - set(range(self.rank, self.rank + here)):
                with (self.folder / f"rank-{rank}.ndjson").open("a", encoding="utf-8") as file:
                    file.write(lines[rank])

    def _record(self, case: Case) -> Record:
        started = time.perf_counter()
        missing = self._missing(case)
        if missing:
            return Record(case=case.id, rank=self.rank, unsupported=missing)
        headrooms: list[float] = []
        try:
            found = self._findings(case, headrooms)
        except (Exception, SystemExit):  # noqa: BLE001 (whatever torch or the target raises is this case's verdict)
            return Record(case=case.id, rank=self.rank, raised=traceback.format_exc(), at=time.time())
        return Record(
            case=case.id,
            rank=self.rank,
            findings=tuple(finding.to_dict() for finding in found),
            headroom=finite(max(headrooms, default=None)),
            bit_equal=not found and not any(headrooms),
            duration_s=time.perf_counter() - started,
        )

    def _missing(self, case: Case) -> str:
        """Return which function of torch's three the schedule needs and the target has not."""
        cells = "".join(cell for row in case.rows for cell in row)
        needed = ((FULL, "B"), (SPLIT[0], "I"), (SPLIT[1], "W"))
        # The first stage of torch's split does all its work by the full backward, in W.
        missing = [name for name, letter in needed if name not in self.functions and (letter in cells or name == FULL)]
        return f"the schedule needs {' and '.join(missing)}, which the target has not" if missing else ""

    def _findings(self, case: Case, headrooms: list[float]) -> list[Finding]:
        scenario = BY_NAME[case.scenario]
        stages = 1 + max(stage for row in case.rows for stage in _stages_in(row))
        plain, wide = (self._whole_model(scenario, stages, case.microbatches, wide=wide) for wide in (False, True))
        own = _stages_in(case.rows[0 if scenario.alone else self.rank])
        cases = stage_cases(scenario, stages)
        modules = {
            i: make_stage(cases[i], i, dtype=self.dtype, device=self.device, seed=self.question.seed) for i in own
        }
        group = self.alone if scenario.alone else None
        schedule = make_schedule(case, scenario, make_stages(modules, stages, self.device, group, self.marker))
        found: list[Finding] = []
        judged = iter(zip(plain, wide, strict=True))
        for number, step in enumerate(scenario.steps):
            if step == "zero_grad":
                for module in modules.values():
                    module.zero_grad()
                continue
            seen = Seen(Held(f"step {number + 1} ({step})", headrooms), modules)
            batch = make_batch(scenario, number, case.microbatches, dtype=self.dtype, seed=self.question.seed)
            batch = batch.to(self.device)
            losses: list[torch.Tensor] = []
            run = schedule.step if step == "train" else schedule.eval
            first, last = 0 in own, stages - 1 in own
            seen.output = run(
                *((batch.x,) if first else ()),
                target=batch.target if last else None,
                losses=losses if last else None,
                **batch.kwargs,
            )
            seen.losses = losses if last else None
            found += findings_of(seen, *next(judged))
        return found

    def _whole_model(self, scenario: Scenario, stages: int, microbatches: int, *, wide: bool) -> list[StepOfWhole]:
        device = torch.device("cpu") if wide else self.device
        return run_whole_model(
            scenario, stages, microbatches, dtype=self.dtype, device=device, seed=self.question.seed, wide=wide
        )


def _stages_in(row: tuple[str, ...]) -> list[int]:
    """Return the stages of a rank, from the cells of its row: each action begins with its stage."""
    from gradconform.fixtures.schedules.placed import placed_actions  # noqa: PLC0415 (as above)

    return sorted({placed.action.stage for placed in placed_actions([row])[0]})


def _device_of(name: str, local_rank: int) -> torch.device:
    """Return this rank's device: where a user names no index, ranks of one machine take one each in turn."""
    device = torch.device(name)
    index: int | None = device.index  # torch types it as an int
    if device.type == "cpu" or index is not None:
        return device
    return torch.device(device.type, local_rank % torch.get_device_module(device).device_count())


def main(folder: Path) -> None:
    """Run the question of a folder."""
    torch.set_num_threads(1)
    question = Question.from_json((folder / "question.json").read_text(encoding="utf-8"))
    end_with(question.parent, folder)
    RankProcess(question, folder).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
