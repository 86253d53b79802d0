"""The keeper of a machine's ranks: ``python -m gradconform.pipeline.rank_keeper keep FOLDER LAUNCHER RANKS``.

Torch's launcher starts one keeper on each machine. It starts that machine's ranks, and starts them again when a start
of all ranks has ended in a case. The keeper has imported torch and used nothing of it, so its forks are ranks that need
not import it. On devices other than the CPU, whose libraries may not survive a fork, a rank is a fresh interpreter:
``python -m gradconform.pipeline.rank_keeper run FOLDER KEEPER NUMBER``.

LAUNCHER and KEEPER are process ids: a process ends with that one from its first moment on, before torch is imported.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from itertools import count
from pathlib import Path

from gradconform.process.imports import imports_uncollected
from gradconform.process.serving import end_with, leave

from .start_folder import Start, ended_all

_PERIOD_S = 0.02


def keep(folder: Path, here: int) -> None:
    """Start the ranks of this machine at each start of all ranks, until no start follows."""
    for start in (Start(folder, number) for number in count()):
        while not start.begun:
            if ended_all(folder):
                return
            time.sleep(_PERIOD_S)
        _follow(start, here)


def _follow(start: Start, here: int) -> None:
    """Run the ranks and report how each ended: its exit code, None if it was killed because others had ended."""
    if start.on_cpu:
        _import_for_ranks(start)
    first = int(os.environ["GROUP_RANK"]) * here
    left = {first + local: _forked(start, first + local, local, here) for local in range(here)}
    while left and not start.over:
        for rank, process in list(left.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del left[rank]
                start.write_exit(rank, os.waitstatus_to_exitcode(status))
        time.sleep(_PERIOD_S)
    for rank, process in left.items():
        with suppress(ProcessLookupError):  # it may not have its own group yet
            os.killpg(process, signal.SIGKILL)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        start.write_exit(rank, None)


def _import_for_ranks(start: Start) -> None:
    """Import what all ranks of a start need, and exclude it from the garbage collections of the forks.

    A collection would scan all of torch, and copy the pages that the ranks share.
    """
    with imports_uncollected():
        importlib.import_module(start.process)
        if start.compiles:
            with suppress(Exception):  # each case reports why nothing compiles here
                importlib.import_module("torch").compile(run)  # imports the compiler; a call would compile
    gc.freeze()


def _forked(start: Start, rank: int, local: int, here: int) -> int:
    """Fork a rank; return its process id."""
    keeper = os.getpid()
    process = os.fork()
    if not process:
        ranks = here * int(os.environ["GROUP_WORLD_SIZE"])
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(local), "ROLE_RANK": str(rank)}
        os.environ |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(here), "ROLE_WORLD_SIZE": str(ranks)}
        _begin(start, rank, keeper)
    return process


def _begin(start: Start, rank: int, keeper: int) -> None:
    """Become the rank: in a group of its own, and with its own file for its output."""
    os.setsid()
    end_with(keeper)
    with start.words_of(rank).open("wb") as words:
        os.dup2(words.fileno(), sys.stderr.fileno())
    if not start.on_cpu:
        of_it = ["-m", "gradconform.pipeline.rank_keeper", "run", str(start.within), str(keeper), str(start.number)]
        os.execv(sys.executable, [sys.executable, *of_it])  # noqa: S606 (this interpreter, with code of our own)
    run(start)


def run(start: Start) -> None:
    """Run this rank, and end this process."""
    try:
        importlib.import_module(start.process).run_rank(start)
    except BaseException:  # noqa: BLE001 (a fork must not run the keeper's code)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    leave()


if __name__ == "__main__":
    _does, _folder, _parent, _number = sys.argv[1:]
    end_with(int(_parent))
    if _does == "run":
        run(Start(Path(_folder), int(_number)))
    keep(Path(_folder), int(_number))
