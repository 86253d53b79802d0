"""The fork server as seen from inside: it imports what processes of the kit need, and forks them.

It runs no code of a target, and no file of a user: the current folder is not on its path. It has one thread when it
forks, and reports that it is unfit if an import has left others, or has opened a device.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import signal
import socket
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from select import select
from typing import Any

from .fork_server import LATE
from .imports import imports_uncollected
from .serving import STACK_SIGNAL, end_with, work_on

#: The most bytes in an order, and the number of descriptors that come with it.
_ORDER, _FILES = 1 << 20, 6

#: Modules that open a device or start threads when they are imported; a device's extension of torch may import them.
_OPENING = ("torch_xla", "jax")


def main() -> None:
    """Serve the parent; in each fork, do the ordered work.

    The arguments are the parent's process id, and the descriptor of the socket with its orders.
    """
    parent, orders = map(int, sys.argv[1:3])
    del sys.argv[1:]
    end_with(parent)
    fork = _Server(socket.socket(fileno=orders)).serve()
    fork.begin()
    work_on(fork.order["work"], fork.server, fork.order["word"], fork.files)


@dataclass(frozen=True, slots=True)
class _Fork:
    """A fork with its order, and the process id of its server.

    ``files`` are for its orders, messages and stacks, ``prints`` for its output.
    """

    server: int
    order: Mapping[str, Any]
    files: Sequence[int]
    prints: Sequence[int]
    reports: socket.socket

    def begin(self) -> None:
        """Make this process as a new interpreter would be that has imported the same modules."""
        os.setsid()
        report = json.dumps({"pid": os.getpid()}).encode() + b"\n"
        try:
            self.reports.sendall(report)
        except OSError:  # the parent needs it no more
            os._exit(0)
        self.reports.close()
        for own, file in zip((1, 2), self.prints, strict=True):
            printed = os.pread(own, os.fstat(own).st_size, 0)
            os.dup2(file, own)
            os.close(file)
            while printed:
                printed = printed[os.write(own, printed) :]
        os.chdir(self.order["folder"])
        _set_variables(self.order["variables"])
        sys.path[:] = self.order["path"]
        sys.orig_argv[3:] = [self.order["work"]]
        _seed()
        gc.unfreeze()


def _set_variables(late: Mapping[str, str]) -> None:
    for name in [name for name in os.environ if name.startswith(LATE) and name not in late]:
        del os.environ[name]
    os.environ.update(late)


def _seed() -> None:
    """Give the generators that were seeded at import other seeds; Python's own gets one at each fork."""
    if torch := sys.modules.get("torch"):
        torch.default_generator.seed()
    if random := sys.modules.get("numpy.random"):
        random.seed()


class _Server:
    """The process that imports and forks. ``children`` are its forks, each with the socket for its exit code."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._children: dict[int, socket.socket] = {}
        self._unfit = ""
        self._ended, self._wakes = os.pipe()
        for file in (self._ended, self._wakes):
            os.set_blocking(file, False)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # a handler is needed for the wakeup

    def serve(self) -> _Fork:
        """Carry out the orders; return in a fork, and never in the server, which ends with its parent."""
        while True:
            ready = select([self._orders.fileno(), self._ended], [], [])[0]
            if self._ended in ready:
                self._report_ends()
            if self._orders.fileno() in ready and (fork := self._take_order()) is not None:
                return fork

    def _take_order(self) -> _Fork | None:
        text, files, *_ = socket.recv_fds(self._orders, _ORDER, _FILES)
        if not text:
            os._exit(0)
        fork = _Fork(os.getpid(), json.loads(text), files[:3], files[3:5], socket.socket(fileno=files[5]))
        self._import(fork.order["imports"], fork.files[2])
        if self._unfit:
            with contextlib.suppress(OSError), fork.reports:
                fork.reports.sendall(json.dumps({"unfit": self._unfit}).encode() + b"\n")
        elif process := self._fork():
            self._children[process] = fork.reports
        else:
            self._leave_the_server()
            return fork
        for file in files[:5]:
            os.close(file)
        return None

    def _import(self, modules: Sequence[str], stacks: int) -> None:
        """Import what is not imported yet, and examine whether this process may fork."""
        missing = [name for name in modules if name not in sys.modules]
        if not missing or self._unfit:
            return
        faulthandler.register(STACK_SIGNAL, stacks)  # an import may hang
        try:
            with imports_uncollected():
                for name in missing:
                    importlib.import_module(name)
            self._unfit = _unfit()
        except BaseException as error:  # noqa: BLE001 (a new interpreter raises it again, and reports it)
            self._unfit = f"{type(error).__name__} at import"
        finally:
            faulthandler.unregister(STACK_SIGNAL)
        gc.freeze()

    def _fork(self) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).fflush(None)
        return os.fork()

    def _leave_the_server(self) -> None:
        """Undo in a fork what only the server needs."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for file in (self._ended, self._wakes):
            os.close(file)
        for reports in (self._orders, *self._children.values()):
            reports.close()

    def _report_ends(self) -> None:
        """Report the exit codes of the forks that have ended."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._ended, 1 << 12):
                pass
        for process in list(self._children):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError), self._children.pop(process) as reports:
                    reports.sendall(json.dumps({"code": code}).encode() + b"\n")


def _unfit() -> str:
    """Return why forks of this process would not be as new interpreters; empty if they would."""
    if _threads() > 1:  # of a pool whose library ends it before each fork, such as OpenBLAS
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            process = os.fork()
        if not process:
            os._exit(0)
        os.waitpid(process, 0)
    if (threads := _threads()) > 1:
        return f"it has {threads} threads"
    return next((f"{name} was imported" for name in _OPENING if name in sys.modules), _opened_device())


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _opened_device() -> str:
    """Return which device torch has initialised, which must not happen before a fork; empty for none."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "xpu", "mtia"):
        is_initialized = getattr(getattr(torch, name, None), "is_initialized", None)
        if is_initialized is not None and is_initialized():
            return f"{name} is initialised"
    return ""
