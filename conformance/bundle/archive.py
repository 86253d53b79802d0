"""Bundles: a statement on a target, with the hashes of its evidence."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import io
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from gradconform.exits import EXIT_ENVIRONMENT, UsageError
from gradconform.files.kit_files import kit_files
from gradconform.files.user_files import LARGEST_REPORT, content
from gradconform.reading.report import read_report
from gradconform.results import Report

SCHEMA, SCHEMA_VERSION = "gradconform-statement", 1


@dataclass(frozen=True, slots=True)
class Sources:
    """The source files of a bundle."""

    report: Path
    records: Path | None = None
    waivers: Path | None = None


def bundle_files(sources: Sources, *, today: dt.date | None = None) -> dict[str, bytes]:
    """Return the files of the bundle by name.

    Raises ``OSError`` for a file that cannot be read, and :class:`~gradconform.reading.report.ReportError`.
    """
    held = content(sources.report, LARGEST_REPORT)
    report = read_report(sources.report)
    files = {REPORT: held, ENVIRONMENT: _json(report.environment), KIT: _json(kit_files())}
    if sources.waivers is not None:
        files[WAIVERS] = content(sources.waivers, LARGEST_REPORT)
    if sources.records is not None:
        files[RECORDS] = content(sources.records, LARGEST_REPORT)
    day = today or dt.datetime.now(dt.timezone.utc).date()
    return {STATEMENT: _json(_stated(report, files, day)), **files}


def _stated(report: Report, files: Mapping[str, bytes], day: dt.date) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "statement": statement(report),
        "made": day.isoformat(),
        "kit": report.kit,
        "contract": report.contract,
        "target": dict(report.target),
        "files": {name: hashlib.sha256(held).hexdigest() for name, held in files.items()},
    }


def statement(report: Report) -> str:
    """Return the report's statement on the target in one sentence, with the hash of its code."""
    counts, target = report.summary, report.target
    name = " ".join(str(target[key]) for key in ("name", "version") if target.get(key))
    cells = ", ".join(dict.fromkeys(f"{result.device} {result.dtype}" for result in report.results))
    waived = f", {counts['waived']} waived" if counts["waived"] else ""
    required, left_out = (
        (report.manifest, "") if report.coverage is None else (report.coverage.asked, report.coverage.left_out)
    )
    should = f"; {counts['failed_should']} SHOULD failed" if counts["failed_should"] else ""
    return (
        f"{name} (SHA-256 {target.get('sha256')}) {report.verdict}: contract {report.contract}, profile "
        f"{report.profile}, on {cells}, with torch {report.environment['torch']}: {counts['passed']} of "
        f"{required} checks passed{waived}{left_out}{should}"
    )


def _json(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(dict(values), indent=2) + "\n").encode()


#: All that a bundle may hold; the last two only where there are such.
STATEMENT, REPORT, ENVIRONMENT, KIT, WAIVERS, RECORDS = NAMES = (
    "statement.json", "report.json", "environment.json", "kit.json", "waivers.toml", "records.ndjson",
)  # fmt: skip
REQUIRED = (STATEMENT, REPORT, ENVIRONMENT, KIT)

#: A report packs to a twentieth of its bytes.
_MOST_PACKED = 1000
#: The last bytes of an archive without a comment, which contain the length of its list of files. In a large archive the
#: locator before them has the address instead.
_END, _LOCATOR, _LONGEST_LIST = 22, 20, 4096
_FIXED_TIME = (1980, 1, 1, 0, 0, 0)
_PACKED = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}
_ENCRYPTED, _KIND, _ORDINARY = 0x1, 0o170000, {0, 0o100000}


class ArchiveError(UsageError):
    """A file that is not a bundle, or is not safe to unpack."""


class ScratchError(UsageError):
    """No temporary file can be written on this machine."""

    exit_code = EXIT_ENVIRONMENT


@contextlib.contextmanager
def on_disk(files: Mapping[str, bytes]) -> Iterator[Path]:
    """Write files to a temporary folder, for programs that read only files. Raises :class:`ScratchError`."""
    with contextlib.ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name, held in files.items():
                (folder / name).write_bytes(held)
        except OSError as error:
            msg = f"cannot write a temporary file ({error}); free some space, or set TMPDIR to another folder"
            raise ScratchError(msg) from error
        yield folder


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return the archive of ``files``; equal files give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in NAMES:
            if name in files:
                entry = zipfile.ZipInfo(name, _FIXED_TIME)
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, files[name])
    return out.getvalue()


def archive_content(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of the file at ``path``. Raises :class:`ArchiveError` if it is larger than any bundle."""
    try:
        return content(path, LARGEST_REPORT)
    except (OSError, ValueError) as error:
        _refuse(path, f"cannot read the file: {getattr(error, 'strerror', None) or error}")


def unpacked(path: str | os.PathLike[str], held: bytes | None = None) -> dict[str, bytes]:
    """Return the files of a bundle by name, without writing any file.

    ``held`` is the result of :func:`archive_content` for ``path``, if it was read before.

    Raises :class:`ArchiveError` for anything but a zip archive, for a name that no bundle has (so for every path), and
    for a repeated name. It is also raised for links, encrypted or too large files, extreme compression, and wrong
    checksums.
    """
    held = archive_content(path) if held is None else held
    try:
        _refuse_long_lists(path, held)
        return _unpacked(path, io.BytesIO(held))
    except (zipfile.BadZipFile, OSError, NotImplementedError, RuntimeError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, ArchiveError):
            raise
        _refuse(path, f"not a readable zip archive: {error}")


def _unpacked(path: object, file: io.BytesIO) -> dict[str, bytes]:
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        _refuse_foreign(path, entries)
        return {entry.filename: _content(path, archive, entry) for entry in entries}


def _refuse_long_lists(path: object, held: bytes) -> None:
    """Raise for an archive with a million files, before zipfile creates an object for each."""
    tail = held[-(_END + _LOCATOR) :]
    locator, end = tail[:-_END], tail[-_END:]
    if not end.startswith(b"PK\x05\x06") or not end.endswith(b"\0\0") or locator.startswith(b"PK\x06\x07"):
        _refuse(path, "not a readable zip archive: it does not end as a bundle does")
    if (listed := int.from_bytes(end[12:16], "little")) > _LONGEST_LIST:
        _refuse(path, f"expected a list of files of at most {_LONGEST_LIST} bytes, got {listed}")


def _refuse_foreign(path: object, entries: list[zipfile.ZipInfo]) -> None:
    names = [entry.filename for entry in entries]
    foreign = [name for name in names if name not in NAMES]
    if foreign:
        _refuse(path, f"contains {foreign[0][:80]!r}, which does not belong in a bundle")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        _refuse(path, f"contains {twice[0]!r} twice")
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        _refuse(path, f"does not contain {', '.join(missing)}")
    for entry in entries:
        _refuse_odd(path, entry)
    if sum(entry.file_size for entry in entries) > LARGEST_REPORT:
        _refuse(path, f"expected at most {LARGEST_REPORT} bytes in total, got more")


def _refuse_odd(path: object, entry: zipfile.ZipInfo) -> None:
    name = entry.filename
    if entry.flag_bits & _ENCRYPTED or entry.compress_type not in _PACKED:
        _refuse(path, f"{name!r} is encrypted or uses another compression than a bundle")
    if (entry.external_attr >> 16) & _KIND not in _ORDINARY:
        _refuse(path, f"{name!r} is a link or another entry that is not a regular file")
    if entry.file_size > LARGEST_REPORT or entry.file_size > _MOST_PACKED * max(entry.compress_size, 1):
        _refuse(path, f"{name!r} unpacks {entry.compress_size} bytes to {entry.file_size}, more than a bundle does")


def _content(path: object, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the content of an entry, without trusting the size in its header."""
    with archive.open(entry) as file:
        held = file.read(entry.file_size + 1)
    if len(held) != entry.file_size:
        _refuse(path, f"{entry.filename!r} differs in size from its header")
    return held


def _refuse(path: object, problem: str) -> NoReturn:
    msg = f"{path}: {problem}; expected a file that 'gradconform bundle' wrote"
    raise ArchiveError(msg)
