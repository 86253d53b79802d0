"""The measurements of operation samples, kept in a file, so that a run reads the results of an earlier one.

By default the file is in the user's cache folder, one for each kit, torch and profile, and a damaged one is created
again. ``--plan FILE`` names one that several machines share, such as the shards of one run.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from gradconform.exits import UsageError
from gradconform.files.kit_files import cache_folder, kit_sha256, remove_old
from gradconform.files.records import differing
from gradconform.files.user_files import LARGEST_REPORT, content, replace_file
from gradconform.process.wait_notices import waiting

#: Seconds to wait for another process that measures; after that this process measures itself.
LOCK_LIMIT = 900.0
#: Distributions in addition to torch that decide which samples torch lists.
_OTHER_DISTRIBUTIONS = ("numpy", "scipy")


class PlanFileError(UsageError):
    """The file that ``--plan`` names is invalid, or belongs to another kit, torch or profile."""


@dataclass(slots=True)
class Measured:
    """The known results of samples, by entry, as JSON values; ``keep`` adds a plan's measurements."""

    known: dict[str, Any]
    measured: dict[str, Any] = field(default_factory=dict)

    def keep(self, outcomes: Mapping[str, Any]) -> None:
        """Add measurements; new ones are written, also those of a plan that is not completed."""
        self.measured.update(outcomes)


@contextlib.contextmanager
def plan_file(given: str | None, profile: str) -> Iterator[Measured]:
    """Open the file ``given`` by ``--plan``, or else that of the cache; write it when the block ends.

    Other processes wait meanwhile, so that one of them measures and the others read. Raises :class:`PlanFileError` for
    a file given by ``--plan`` that cannot be read or written, or that does not fit.
    """
    made_by = _made_by(profile)
    path = _cached(made_by) if given is None else Path(given)
    if given is not None and not path.parent.is_dir():
        msg = f"--plan {given}: the folder {str(path.parent)!r} does not exist; name a file in an existing folder"
        raise PlanFileError(msg)
    with _locked(path):
        found = Measured(_read(path, made_by, named=given is not None))
        try:
            yield found
        finally:
            values = {**found.known, **found.measured}
            if values != found.known or (given is not None and not path.exists()):
                _write(path, {"made_by": made_by, "measured": values}, named=given is not None)


def _made_by(profile: str) -> dict[str, str]:
    """Return the values that the results of samples depend on, by name."""
    found = {"kit": kit_sha256()[:16], "torch": f"{torch.__version__} {torch.version.git_version or ''}".strip()}
    for name in _OTHER_DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return {**found, "profile": profile}


def _cached(made_by: Mapping[str, str]) -> Path:
    about = {**made_by, "cpu": torch.backends.cpu.get_cpu_capability()}
    named = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]
    return cache_folder() / "plans" / f"{named}.json"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Allow one process at a time to use the file; without a lock, as on a read-only disk, continue anyway."""
    folder = cache_folder() / "plans"
    named = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, NotImplementedError, Timeout):
            folder.mkdir(parents=True, exist_ok=True)
            with waiting("waiting for another process that measures operation samples", LOCK_LIMIT):
                held.enter_context(FileLock(folder / f"{named}.lock").acquire(timeout=LOCK_LIMIT))
        yield


def _read(path: Path, made_by: Mapping[str, str], *, named: bool) -> dict[str, Any]:
    """Return the content of the file; empty for an unreadable one in the cache."""
    try:
        values = json.loads(content(path, LARGEST_REPORT))
        found, by = dict(values["measured"]), dict(values["made_by"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        if not named:
            return {}
        msg = f"--plan {path}: cannot read the file: {type(error).__name__}: {error}; remove it, or name another file"
        raise PlanFileError(msg) from error
    wrong = differing(by, made_by)
    if wrong and named:
        reported = "; ".join(f"expected {name} {here}, got {was}" for name, (was, here) in wrong.items())
        msg = f"--plan {path}: the file does not fit this run: {reported}; remove it, or name another file"
        raise PlanFileError(msg)
    return {} if wrong else found


def _write(path: Path, values: Mapping[str, Any], *, named: bool) -> None:
    """Replace the whole file; skip one in the cache that cannot be written."""
    try:
        replace_file(str(path), json.dumps(values))
        if not named:
            remove_old(path.parent)
    except OSError as error:
        if named:
            msg = f"--plan {path}: cannot write the file: {error.strerror}; name a file in an existing folder"
            raise PlanFileError(msg) from error
