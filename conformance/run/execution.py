"""A run as the command uses it: its header, and a way to run the remaining items, in this process or in others."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from gradconform.exits import EXIT_ENVIRONMENT
from gradconform.files.records import Header, RecordsError, as_line, finished
from gradconform.reading.record_file import RecordedRun, read_run
from gradconform.results import Place, Result

OnResult = Callable[[Result], None]
#: Receives each item as it begins, as a ``not_run`` result.
OnStart = Callable[[Result], None]


class Execution(Protocol):
    """A run that is ready to begin."""

    header: Header

    def run(self, on_result: OnResult, *, on_start: OnStart, places: Iterable[Place]) -> None:
        """Run the items at ``places``."""

    def close(self) -> None:
        """Free the prepared resources."""


class RecordFile:
    """An open file of records. No other run can write to it, and each record is written to the system at once.

    Raises :class:`~gradconform.files.records.RecordsError` for a path that cannot be written to, that another run is
    writing to, or that is not a file of records. It also raises for a file with an unfinished run, so that its results
    are not lost.
    """

    def __init__(self, path: str, *, resume: bool = False) -> None:
        """Open and lock ``path``. With ``resume`` it must hold a run, ``found``, which is continued."""
        self.path = path
        self._file, self._created = _opened(path, create=not resume)
        self._written = 0
        self.found: RecordedRun | None = None
        try:
            _lock(self._file, path)
            self._begin(resume=resume)
        except RecordsError:
            self.close()
            raise

    def _begin(self, *, resume: bool) -> None:
        size = os.fstat(self._file).st_size
        if resume:
            self.found = read_run(self.path)
            return
        if size and not (found := read_run(self.path)).ended:
            command = dict(found.header.report.get("options") or {}).get("command", "run")
            msg = (
                f"{self.path!r} contains an unfinished run ({len(found.results)} of {len(found.header.places)} "
                f"results); continue it with 'gradconform {command} --resume {self.path}', or remove the file"
            )
            raise RecordsError(msg)

    def begin(self, header: Header) -> None:
        """Write the first line; with ``resume``, write after the last complete line that the run is continued."""
        if self.found is None:
            os.ftruncate(self._file, 0)
            self.write(header.to_record())
        else:
            os.ftruncate(self._file, self.found.whole)
            self.write({"record": "resumed", "results": len(self.found.results)})

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record; raise ``RecordsError`` if not all of it could be written."""
        line = as_line(record)
        try:
            os.lseek(self._file, 0, os.SEEK_END)
            while line:  # a disk that fills up accepts a part of the line first, and refuses the rest
                line = line[os.write(self._file, line) :]
        except OSError as error:
            msg = (
                f"cannot write to {self.path!r} any more: {error.strerror}; the results in it are kept; "
                f"free some space, and continue with --resume {self.path}"
            )
            raise RecordsError(msg, EXIT_ENVIRONMENT) from error
        self._written += 1

    def add(self, result: Result) -> None:
        """Append a result."""
        self.write(finished(result))

    def end(self, verdict: str) -> None:
        """Append the record that every planned item has a result."""
        self.write({"record": "end", "verdict": verdict})

    def close(self) -> None:
        """Close and unlock; remove a file that was created for a run that never began."""
        if self._file < 0:
            return
        if self._created and not self._written:
            Path(self.path).unlink(missing_ok=True)
        os.close(self._file)
        self._file = -1


def _opened(path: str, *, create: bool) -> tuple[int, bool]:
    """Return the open file, and whether it is new."""
    try:
        created = not Path(path).exists()
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o666)
    except OSError as error:
        advice = "name a file in an existing, writable folder" if create else "name the file of a run"
        msg = f"cannot open {path!r} for writing: {error.strerror}; {advice}"
        raise RecordsError(msg) from error
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        msg = f"{path!r} is not a regular file; name a regular file, so that the run can be continued"
        raise RecordsError(msg)
    return file, created


def _lock(file: int, path: str) -> None:
    """Lock an open file; the system releases the lock however this process ends."""
    import fcntl  # noqa: PLC0415 (not every system has it, and only a file of records needs it)

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        msg = f"another run is writing to {path!r} ({error.strerror}); wait until it ends, or name another file"
        raise RecordsError(msg) from error
