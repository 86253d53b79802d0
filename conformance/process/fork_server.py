"""One process that imports slow modules and forks the kit's processes from then on, seen from its parent.

Several workers then cost one import of torch, and a worker that crashes costs no second one. Only Linux has what this
needs: descriptors that are passed on, an end that follows the parent's, and system libraries that survive a fork.
Wherever the server cannot be used, or ends, processes start in new interpreters, as they do without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from select import select
from typing import Any

from .imports import Sharing
from .orphans import own_has_ended, start_own
from .started import Beginning, Fresh, Started, kill_group, module_path

#: Set to 0, each process of the kit imports what it needs itself.
VARIABLE = "GRADCONFORM_FORK_SERVER"

_BOOT = "import sys; sys.path[:] = sys.argv[3:]; from gradconform.process.fork_serving import main; main()"

#: Prefixes of variables that no import reads; each fork gets their values at its start.
LATE = ("GRADCONFORM_", "PYTEST_")

#: The time in seconds for the server to report the end of a killed process before it is ended itself.
_PATIENCE = 5.0

#: The interval in seconds at which a killed process is looked for if the server does not report its end.
_LOOK = 0.01

#: The most bytes in one report of the server.
_REPORT = 1 << 12


class _Current:
    """The server of this process, if it has one."""

    server: Server | None = None


def begin(beginning: Beginning, imports: Sequence[str]) -> Started:
    """Start a process that needs the modules ``imports``: as a fork of the server, or in a new interpreter."""
    server = ready_server() if imports else None
    if server is not None:
        with contextlib.suppress(OSError):  # for example, no descriptor is left
            return Forked(server, beginning, imports)
    return Fresh(beginning)


def ready_server() -> Server | None:
    """Return the server for processes that start now, perhaps a new one; None if there can be none.

    Only the thread that opened the context starts one: on Linux, a process may end with the thread that started it.
    """
    if sys.platform != "linux" or os.environ.get(VARIABLE) == "0":
        return None
    with Sharing.lock:
        if not Sharing.users:
            return None
        like, server = _inherited(), _Current.server
        if server is not None and server.like != like and not server.processes:
            server.end()
            server = None
        if server is None and threading.get_ident() == Sharing.thread:
            with contextlib.suppress(OSError):  # for example, no descriptor is left
                server = _Current.server = Server(like)
                Sharing.end = server.end
        return server if server is not None and server.like == like and server.poll() is None else None


def _inherited() -> Mapping[str, Any]:
    """Return what a process inherits and an import may read. The current folder is no part: a fork gets it later."""
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")}
    return {
        "python": sys.executable,
        "path": module_path(here=False),
        "variables": {name: value for name, value in os.environ.items() if not name.startswith(LATE)},
        "limits": limits,
        "processors": os.sched_getaffinity(0) if sys.platform == "linux" else None,
    }


class Server:
    """The server. ``like`` is what it inherited, and ``processes`` are its forks that have not been ended."""

    def __init__(self, like: Mapping[str, Any]) -> None:
        """Start it; it imports nothing before its first order."""
        self.like = like
        self.processes: set[Forked] = set()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.settimeout(0)  # an order is taken at once, or not at all
        # What the imports print is in files, from which each fork repeats it, as if it had imported them itself.
        with theirs, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            words = [sys.executable, "-c", _BOOT, str(os.getpid()), str(theirs.fileno()), *like["path"]]
            self._process = start_own(
                lambda: subprocess.Popen(  # noqa: S603 (this interpreter, with code of our own)
                    words,
                    pass_fds=(theirs.fileno(),),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
            )

    def pid(self) -> int:
        """Return the id."""
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code; None while it lives."""
        return self._process.poll()

    def order(self, order: Mapping[str, Any], files: Sequence[int]) -> None:
        """Send an order with descriptors; raise ``OSError`` if the server is gone, or takes none."""
        socket.send_fds(self._orders, [json.dumps(order).encode()], files)

    def end(self) -> None:
        """End the server, and all processes that it has forked."""
        kill_group(self._process.pid)
        self._process.wait()
        own_has_ended(self._process.pid)
        self._orders.close()
        if _Current.server is self:
            _Current.server = None


class Forked:
    """A process that the server forks; in a new interpreter if the server cannot.

    The server reports the exit code, and the fork its id, in lines of JSON through the socket ``_reports``. The id is
    unknown as long as the server imports.
    """

    def __init__(self, server: Server, beginning: Beginning, imports: Sequence[str]) -> None:
        """Order the process."""
        self._server, self._beginning = server, beginning
        self._settled = self._ending = False
        self._pid: int | None = None
        self._code: int | None = None
        self._fresh: Fresh | None = None
        self._rest = b""
        self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        server.processes.add(self)
        order = {
            "imports": imports, "work": beginning.work, "word": beginning.word, "path": beginning.path,
            "folder": os.getcwd(),  # noqa: PTH109 (as a child process would inherit it)
            "variables": {name: value for name, value in os.environ.items() if name.startswith(LATE)},
        }  # fmt: skip
        files = (beginning.orders, beginning.messages, beginning.stacks, beginning.out, beginning.err)
        with theirs, contextlib.suppress(OSError):  # the reports end then
            server.order(order, (*files, theirs.fileno()))

    def pid(self) -> int | None:
        """Return the id; None while the server imports."""
        self.poll()
        return self._pid if self._fresh is None else self._fresh.pid()

    def poll(self) -> int | None:
        """Return the exit code; None while the process lives or is not started yet."""
        self._read(0.0)
        return self._code if self._fresh is None else self._fresh.poll()

    def wait(self, seconds: float) -> None:
        """Wait for the end for at most ``seconds``."""
        until = time.monotonic() + seconds
        while self._fresh is None and self._code is None and (left := until - time.monotonic()) > 0:
            self._read(left)
        if self._fresh is not None:
            self._fresh.wait(max(0.0, until - time.monotonic()))

    def at_work(self) -> int:
        """Return the id of the process whose stacks show what it does: the server's while that imports."""
        return self.pid() or self._server.pid()

    def end(self) -> None:
        """Kill the process and its group, and wait for its end. A process that is not forked yet will never work."""
        if self.pid() is None:
            self._ending = True
            with contextlib.suppress(OSError):
                self._reports.shutdown(socket.SHUT_RD)  # a fork that cannot report its id ends
            self._read(0.0)  # unless its report came before
        if self._fresh is not None:
            self._fresh.end()
        elif self._pid is not None:
            kill_group(self._pid)
            self._await_end(self._pid)
        self._settle()
        self._reports.close()
        self._server.processes.discard(self)

    def _await_end(self, process: int) -> None:
        """Wait until a killed process has ended. A server that does not report it, since it was stopped, is ended."""
        if not self._ending:
            self.wait(_PATIENCE)
        if self._code is None:
            until = time.monotonic() + _PATIENCE
            while _exists(process) and time.monotonic() < until:
                time.sleep(_LOOK)
            if _exists(process):
                self._server.end()
            self._code = -signal.SIGKILL

    def _read(self, seconds: float) -> None:
        """Take the reports that have arrived; wait for one for at most ``seconds``."""
        while self._fresh is None and self._code is None and select([self._reports], [], [], seconds)[0]:
            chunk = self._reports.recv(_REPORT)
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
            if not chunk:
                self._take({"code": -signal.SIGKILL} if self._pid is not None else {"unfit": "it has ended"})
            seconds = 0.0

    def _take(self, report: Mapping[str, Any]) -> None:
        if "pid" in report:
            self._pid = report["pid"]
            self._settle()
        elif "code" in report:
            self._code = report["code"]
        elif self._ending:
            self._code = -signal.SIGKILL
        else:
            self._settled = True
            self._fresh = Fresh(self._beginning)

    def _settle(self) -> None:
        """Close the descriptors that the process has, or will not get."""
        if not self._settled:
            self._settled = True
            self._beginning.close()


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
