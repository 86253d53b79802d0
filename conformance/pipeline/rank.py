"""The keeper of one rank: ``python -m gradconform.pipeline.rank FOLDER LAUNCHER``, started by torch's launcher.

It starts the rank, and again when a start of all ranks has ended in a case. It has imported torch and has used nothing
of it, so a fork of it is a rank that need not wait for that. On other devices than the CPU, whose libraries may not
survive a fork, the rank is a fresh interpreter: ``python -m gradconform.pipeline.rank FOLDER KEEPER NUMBER``.

LAUNCHER and KEEPER are process ids: a process ends with that one from its first moment on, before torch is imported.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from contextlib import suppress
from itertools import count
from pathlib import Path

from gradconform.process.serving import end_with, leave

from .starts import Start, ended_all

_PERIOD_S = 0.02

#: What a rank runs; its import takes seconds.
_PROCESS = "gradconform.pipeline.rank_process"


def keep(folder: Path) -> None:
    """Start this rank whenever all ranks are to start, until no start follows."""
    rank = int(os.environ["RANK"])
    for start in (Start(folder, number) for number in count()):
        while not start.begun:
            if ended_all(folder):
                return
            time.sleep(_PERIOD_S)
        start.tell_exit(rank, _kept(start, rank))


def _kept(start: Start, rank: int) -> int | None:
    """Run the rank; return its exit code as subprocess gives it, None where it was killed because others had ended."""
    if start.on_cpu:
        importlib.import_module(_PROCESS)
    keeper = os.getpid()
    process = os.fork()
    if not process:
        _begin(start, rank, keeper)
    while not start.over:
        ended, status = os.waitpid(process, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_PERIOD_S)
    with suppress(ProcessLookupError):  # it may have no group of its own yet
        os.killpg(process, signal.SIGKILL)
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    return None


def _begin(start: Start, rank: int, keeper: int) -> None:
    """Become the rank: in a group of its own, and with a file of its own for what it writes."""
    os.setsid()
    end_with(keeper)
    with start.words_of(rank).open("wb") as words:
        os.dup2(words.fileno(), sys.stderr.fileno())
    if not start.on_cpu:
        of_it = ["-m", "gradconform.pipeline.rank", str(start.within), str(keeper), str(start.number)]
        os.execv(sys.executable, [sys.executable, *of_it])  # noqa: S606 (this interpreter, with code of our own)
    run(start)


def run(start: Start) -> None:
    """Run this rank, and end this process."""
    try:
        importlib.import_module(_PROCESS).run_rank(start)
    except BaseException:  # noqa: BLE001 (nothing of the keeper's goes on in a fork of it)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    leave()


if __name__ == "__main__":
    _folder, _parent, *_number = sys.argv[1:]
    end_with(int(_parent))
    if _number:
        run(Start(Path(_folder), int(*_number)))
    keep(Path(_folder))
