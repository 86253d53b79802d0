"""Runs the commands of the bench, each in a process of its own, some at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

from gradconform.bench import Defect

from .outcome import Outcome
from .told import Told, told_by

#: What one command may take, in seconds: the longest takes a tenth of it on a free machine.
LONGEST = 600.0
#: What a command that was interrupted may take to end what it has started, in seconds.
_ENDING = 20.0


def judge_bench(
    defects: Sequence[Defect], *, workers: int, on_outcome: Callable[[Outcome], None] = lambda _: None
) -> None:
    """Judge each defect and its mended version by its command, ``workers`` commands at a time.

    Outcomes are told as they come. Two defects that have a mended version and a command in common share its run. What
    runs is ended where this is interrupted, or raises.
    """
    commands: dict[tuple[str, ...], Future[Told]] = {}
    with tempfile.TemporaryDirectory(prefix="gradconform-bench-") as folder, ThreadPoolExecutor(workers) as pool:
        running = _Commands(folder)
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

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._processes: set[subprocess.Popen[str]] = set()
        self._ended = False

    def told(self, words: tuple[str, ...]) -> Told:
        """Run one command of the kit and return what it told."""
        report = Path(tempfile.mkdtemp(dir=self._folder)) / "report.json"
        began = time.perf_counter()
        argv = [sys.executable, "-m", "gradconform", *words, "--json", str(report)]
        with self._lock:
            if self._ended:
                return Told(command=words, exit_code=-1, seconds=0.0, errors=("interrupted",))
            process = subprocess.Popen(  # noqa: S603 (this Python, and words of the records)
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                start_new_session=True, cwd=report.parent,
            )  # fmt: skip
            self._processes.add(process)
        try:
            said, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            _end(process)
            said, _ = process.communicate()
        with self._lock:
            self._processes.discard(process)
        return told_by(words, process.returncode, time.perf_counter() - began, report, said)

    def end(self) -> None:
        """End all that runs, and let nothing begin."""
        with self._lock:
            self._ended, running = True, list(self._processes)
        for process in running:
            _signal(process, signal.SIGINT)
        for process in running:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a command as ctrl-C does, and by force where that takes too long."""
    _signal(process, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_ENDING)
    _signal(process, signal.SIGKILL)


def _signal(process: subprocess.Popen[str], which: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, which)
