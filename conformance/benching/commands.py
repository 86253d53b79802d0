"""The process that runs the commands of the bench: it imports their modules once, and forks for each.

It runs no command itself. The import of torch takes longer than most commands.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gradconform.exits import EXIT_KIT
from gradconform.process.serving import Orders, Send, end_with

_PERIOD_S = 0.02

#: The files of a command in its folder: its report, and what it prints.
REPORT, OUTPUT = "report.json", "said"

#: Runs a command of the kit from its words, and returns its exit code.
Command = Callable[[Sequence[str]], int]


@dataclass(frozen=True, slots=True)
class _Running:
    """A command by its number, with its deadline."""

    number: int
    began: float
    until: float


def run_commands(orders: Orders, send: Send) -> None:
    """Run the given commands in that process, some ``at_once``, and report the end of each.

    Each has a folder in ``within``, named by its number. A command that takes longer than ``longest`` seconds is
    killed.
    """
    given = next(orders)
    module, _, name = given["command"].partition(":")
    command: Command = getattr(importlib.import_module(module), name)
    for module in given["imports"]:
        importlib.import_module(module)
    waiting, running = deque(enumerate(given["commands"])), dict[int, _Running]()
    while waiting or running:
        while waiting and len(running) < given["at_once"]:
            number, words = waiting.popleft()
            began = time.monotonic()
            process = _forked(command, words, Path(given["within"], str(number)))
            running[process] = _Running(number, began, began + given["longest"])
        if (ended := _ended(running)) is not None:
            send(ended)
        else:
            time.sleep(_PERIOD_S)


def _forked(command: Command, words: Sequence[str], folder: Path) -> int:
    """Fork a process that runs a command; return its id."""
    folder.mkdir()
    parent = os.getpid()
    process = os.fork()
    if not process:
        os.setsid()
        end_with(parent)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _run(command, words, folder)
    return process


def _run(command: Command, words: Sequence[str], folder: Path) -> NoReturn:
    """Run a command in its folder, and end this process with its exit code."""
    output = os.open(folder / OUTPUT, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, sys.stdout.fileno())
    os.dup2(output, sys.stderr.fileno())
    os.chdir(folder)
    try:
        code = command([*words, "--json", str(folder / REPORT)])
    except BaseException:  # noqa: BLE001 (nothing of the process that it was forked from goes on in it)
        traceback.print_exc()
        code = EXIT_KIT
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _ended(running: dict[int, _Running]) -> Mapping[str, Any] | None:
    """Return the outcome of one ended command, None if none has ended; kill those over their time limit."""
    for process, one in running.items():
        if time.monotonic() > one.until:
            _kill(process)
        ended, status, used = os.wait4(process, os.WNOHANG)
        if ended:
            _kill(process)  # what is left of its group
            del running[process]
            code = os.waitstatus_to_exitcode(status)
            busy = used.ru_utime + used.ru_stime
            return {"number": one.number, "code": code, "seconds": time.monotonic() - one.began, "busy": busy}
    return None


def _kill(process: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)
