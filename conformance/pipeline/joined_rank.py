"""A rank that has joined its process group: it runs the cases of a job together with the others.

It writes ``rank-R.ndjson`` (outcomes) and ``rank-R.mark`` into the folder of a start.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from gradconform.devices.device import device_of
from gradconform.devices.dtypes import dtype_named
from gradconform.devices.registry import load_plugins
from gradconform.process.serving import write_stacks_to

from .cpu_copies import HOST_COPIES, register_host_copies
from .exchange import Marker, Outcome
from .ranks import RankCase
from .start_folder import JOB, Start

#: The extra time for which other ranks wait for a hanging rank, so that it is the one that is ended.
_PATIENCE_S = 10


def run_rank_of(start: Start, joined: Callable[[str], Any]) -> None:
    """Run the job of a start, whose text ``joined`` turns into a rank that has joined the others."""
    torch.set_num_threads(1)
    with (start.folder / f"rank-{os.environ['RANK']}.stack").open("w", encoding="utf-8") as stacks:
        write_stacks_to(stacks)
        process = joined((start.folder / JOB).read_text(encoding="utf-8"))
        process.run(process.job.cases, process.outcomes_of)


class JoinedRank:
    """One rank with its device, its dtype and its marker."""

    def __init__(self, job: Any, start: Start) -> None:
        """Join the process group."""
        self.folder = start.folder
        #: The group of the kit's own messages between cases; None is the group of all ranks.
        self.apart: dist.ProcessGroup | None = None
        self.rank, self.ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.marker = Marker(self.folder / f"rank-{self.rank}.mark")
        self.marker.note("joining the process group")
        self.device = _device_of(job.device, job.plugins, int(os.environ["LOCAL_RANK"]))
        device_of(self.device).reads_views = job.reads_views
        self.dtype = dtype_named(job.dtype)
        patience = timedelta(seconds=max(map(job.limit, job.cases)) + _PATIENCE_S)
        store, rank, ranks = next(rendezvous("env://", timeout=patience))
        if job.backend == HOST_COPIES:
            register_host_copies(self.device.type)
        dist.init_process_group(
            job.backend,
            # The store holds the entries of earlier starts' ranks.
            store=dist.PrefixStore(start.folder.name, store),  # type: ignore[attr-defined] # torch's documentation has it
            rank=rank,
            world_size=ranks,
            timeout=patience,
        )

    def run(self, cases: Sequence[RankCase], outcomes_of: Callable[[Any], Sequence[Outcome]]) -> None:
        """Run every case and write its outcomes; end the process if one raises, since the others wait for it."""
        for case in cases:
            self.marker.begin(case.id)
            outcomes = outcomes_of(case)
            lines = self.write(outcomes)
            if any(outcome.raised is not None for outcome in outcomes):
                os._exit(1)
            self.marker.note("the end of the case")
            self._share(lines)
        self.marker.begin("")
        self.marker.note("leaving the process group")
        # A DistributedDataParallel reducer that outlives its group hangs: as its last owner, it joins gloo's threads
        # while it holds the GIL, and one of them may need the GIL to free a tensor.
        gc.collect()
        dist.destroy_process_group()

    def write(self, outcomes: Sequence[Outcome]) -> str:
        """Write outcomes, which the run reads at once; return their lines."""
        lines = "".join(outcome.to_line() for outcome in outcomes)
        with (self.folder / f"rank-{self.rank}.ndjson").open("a", encoding="utf-8") as file:
            file.write(lines)
        return lines

    def _share(self, lines: str) -> None:
        """Wait for the other ranks, and record the outcomes of other machines: each machine reports all of them."""
        everything: list[str] = [""] * self.ranks
        dist.all_gather_object(everything, lines, group=self.apart)
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        if int(os.environ["LOCAL_RANK"]) == 0:
            for rank in set(range(self.ranks)) - set(range(self.rank, self.rank + here)):
                with (self.folder / f"rank-{rank}.ndjson").open("a", encoding="utf-8") as file:
                    file.write(everything[rank])


def _device_of(name: str, plugins: tuple[str, ...], local_rank: int) -> torch.device:
    """Return this rank's device: if a user names no index, the ranks of a machine take the indices in turn."""
    load_plugins(plugins, tuple({name.partition(":")[0]} - {"cpu"}))
    device = torch.device(name)
    if device.type == "cpu":
        return device
    index: int | None = device.index  # torch types it as an int
    module = torch.get_device_module(device)
    here = torch.device(device.type, local_rank % module.device_count() if index is None else index)
    if hasattr(module, "set_device"):  # code that names no index then uses this one, as under torchrun
        module.set_device(here)
    return here
