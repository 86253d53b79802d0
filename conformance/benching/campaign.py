"""Runs the commands of the bench, each in a process of its own, some at a time.

The processes are forked from one that has imported what commands need, and has run nothing: torch's import takes longer
than most commands do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from gradconform.bench import Defect

from .outcome import Outcome
from .told import Told, told_by

#: What one command may take, in seconds: the longest takes a tenth of it on a free machine.
LONGEST = 600.0
#: What a command that was interrupted may take to end what it has started, in seconds.
_ENDING = 20.0

#: Runs a command of the kit from its words, and returns its exit code.
Command = Callable[[Sequence[str]], int]


def judge_bench(
    defects: Sequence[Defect],
    command: Command,
    *,
    workers: int,
    imports: Sequence[str] = (),
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> None:
    """Judge each defect and its mended version by its command, ``workers`` commands at a time.

    ``command`` is a function of a module, and ``imports`` are modules that it needs. Outcomes are told as they come.
    Two defects that have a mended version and a command in common share its run. What runs is ended where this is
    interrupted, or raises.
    """
    commands: dict[tuple[str, ...], Future[Told]] = {}
    with tempfile.TemporaryDirectory(prefix="gradconform-bench-") as folder, ThreadPoolExecutor(workers) as pool:
        running = _Commands(folder, command, imports)
        try:
            for defect in defects:
                for target in (defect.broken, defect.mended):
                    words = defect.words(target)
                    if words not in commands:
                        commands[words] = pool.submit(running.told, words)
            left = list(defects)
            while left:
                wait([one for one in commands.values() if not one.done()], return_when=FIRST_COMPLETED)
                for defect in list(left):
                    both = [commands[defect.words(target)] for target in (defect.broken, defect.mended)]
                    if all(one.done() for one in both):
                        left.remove(defect)
                        on_outcome(Outcome(defect, *(one.result() for one in both)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            running.end()
            raise


class _Commands:
    """The commands that run now, and the folder that their reports are written to."""

    def __init__(self, folder: str, command: Command, imports: Sequence[str]) -> None:
        self._folder, self._command = folder, command
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(imports))
        self._lock = threading.Lock()
        self._processes: set[ForkServerProcess] = set()
        self._ended = False

    def told(self, words: tuple[str, ...]) -> Told:
        """Run one command of the kit and return what it told."""
        own = Path(tempfile.mkdtemp(dir=self._folder))
        report, said = own / "report.json", own / "said"
        began = time.perf_counter()
        process = self._context.Process(
            target=_judged, args=(self._command, [*words, "--json", str(report)], str(said))
        )
        with self._lock:
            if self._ended:
                return Told(command=words, exit_code=-1, seconds=0.0, errors=("interrupted",))
            process.start()
            self._processes.add(process)
        process.join(LONGEST)
        _end(process)
        with self._lock:
            self._processes.discard(process)
        text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
        return told_by(words, process.exitcode or 0, time.perf_counter() - began, report, text)

    def end(self) -> None:
        """End all that runs, and let nothing begin."""
        with self._lock:
            self._ended, running = True, list(self._processes)
        for process in running:
            _signal(process, signal.SIGINT)
        for process in running:
            _end(process)


def _judged(command: Command, words: list[str], said: str) -> None:
    """Run a command in this process, which leads a group of its own and prints into a file."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    told = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(told, 1)
    os.dup2(told, 2)
    os.chdir(Path(said).parent)
    sys.exit(command(words))


def _end(process: ForkServerProcess) -> None:
    """End a command that still runs as ctrl-C does, and what is left of its group by force."""
    if process.is_alive():
        _signal(process, signal.SIGINT)
        process.join(_ENDING)
    _signal(process, signal.SIGKILL)
    process.join()


def _signal(process: ForkServerProcess, which: int) -> None:
    if process.pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, which)
