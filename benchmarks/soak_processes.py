"""The processes of one fault of benchmarks/soak.py: found by their folder, struck, and looked for at the end."""

from __future__ import annotations

import os
import resource
import signal
import time
from contextlib import suppress
from pathlib import Path

#: The name of a process of the kit, or what it has on its command line, by what it is to the command.
_ROLES = {
    b"serving:serve": "worker",
    b"probe_questions": "probe",
    b"launcher:launch": "launcher",
    b"gradconform.pipeline.rank_keeper": "rank",
    b"import sys;exec(eval(sys.stdin.readline()))": "worker",  # execnet's, for pytest-xdist
}
#: How much more than it has a process may have, in bytes, where its memory is limited from outside.
_ROOM = 4 << 20


def of_folder(folder: Path) -> dict[int, str]:
    """Return all processes that have the folder in their environment or on their command line, by what they are."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = [(entry / "comm").read_bytes().strip(), *(entry / "cmdline").read_bytes().split(b"\0")]
            variables = (entry / "environ").read_bytes().split(b"\0")
            gone = (entry / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0] == "Z"
            if not gone and (f"GRADCONFORM_SOAK={folder}".encode() in variables or str(folder).encode() in words):
                found[int(entry.name)] = next((role for word, role in _ROLES.items() if word in words), "another")
    return found


def strike(process: int, how: str) -> None:
    """Do to a process what the fault is; raise ``ProcessLookupError`` where it is gone."""
    if how in {"SIGKILL", "SIGTERM"}:
        os.kill(process, signal.Signals[how])
    elif how == "prlimit":
        pages = int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[0])
        limit = pages * resource.getpagesize() + _ROOM
        resource.prlimit(process, resource.RLIMIT_AS, (limit, limit))
    else:
        os.kill(process, signal.SIGSTOP)


def left_after(folder: Path, seconds: float) -> dict[int, str]:
    """Return the processes of a folder that are there after so many seconds; waits no longer than there are some."""
    until = time.monotonic() + seconds
    while (left := of_folder(folder)) and time.monotonic() < until:
        time.sleep(0.1)
    return left


def end(processes: dict[int, str]) -> None:
    """End what should have ended by itself."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def shared_memory(processes: set[int]) -> list[str]:
    """Return the files in shared memory that torch has named after one of the processes."""
    files = (entry.name for entry in Path("/dev/shm").glob("torch_*"))  # noqa: S108 (looked at)
    return [name for name in files if name.split("_")[1] in set(map(str, processes))]
