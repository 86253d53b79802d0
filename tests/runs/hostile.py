"""Hostile targets, named ``hostile.py:NAME``: plain autograd that changes its process as some libraries do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import torch
from torch import Tensor


def _target(trouble: Callable[[], object]) -> SimpleNamespace:
    """Return the functions of a target that calls ``trouble`` in each B."""

    def stage_backward(stage_output: Any, output_grads: Any, input_values: Sequence[Tensor]) -> tuple[Any, ...]:
        outputs = list(stage_output) if isinstance(stage_output, (tuple, list)) else [stage_output]
        trouble()
        torch.autograd.backward(outputs, output_grads or [None] * len(outputs))
        return tuple(value.grad for value in input_values)

    return SimpleNamespace(stage_backward=stage_backward)


def _raising(error: BaseException) -> SimpleNamespace:
    def trouble() -> NoReturn:
        raise error

    return _target(trouble)


def _fork_for_work() -> None:
    for end in (lambda: os._exit(3), sys.exit, lambda: os.execv("/bin/true", ["true"])):  # noqa: S606 (as libraries do)
        child = os.fork()
        if child == 0:
            end()
        os.waitpid(child, 0)


def _write_to_each(files: Iterable[int]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            os.write(file, b"hello\n")


def _all_files() -> list[int]:
    return [int(entry) for entry in os.listdir("/dev/fd") if int(entry) > 2]  # noqa: PTH208 (names, not files)


def _leave_daemons() -> None:
    """Start three processes that remain: one in this process's group, one in another session, and one that forked
    twice.
    """
    words = [sys.executable, "-S", "-c", "import time; time.sleep(1000)", os.environ.get("HOSTILE_MARK", "")]
    subprocess.Popen(words)
    subprocess.Popen(words, start_new_session=True, env={})
    if (child := os.fork()) == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(words[0], words, {})  # noqa: S606 (as libraries do)
        os._exit(0)
    os.waitpid(child, 0)


def _leave_daemons_and_crash() -> NoReturn:
    _leave_daemons()
    os.abort()


comes_back_twice = _target(os.fork)
forks_for_work = _target(_fork_for_work)
interrupts = _raising(KeyboardInterrupt("mine"))
exits = _raising(SystemExit(0))
closes = _raising(GeneratorExit())
writes_to_256_files = _target(lambda: _write_to_each(range(256)))
writes_to_all_files = _target(lambda: _write_to_each(_all_files()))
leaves_daemons = _target(_leave_daemons)
leaves_daemons_and_crashes = _target(_leave_daemons_and_crash)
closes_all_files = _target(lambda: os.closerange(3, 1 << 20))
