"""The contract's versions as files: each check's requirement, and a digest of its trials. Imports no torch.

``gradconform contract --freeze`` writes the file of the current version. A released version no longer changes. A new
check has a later ``since``, a removed one has an ``until``, and a check with a new requirement gets another id.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradconform.files.records import tupled
from gradconform.user_input.values import Profile, SelectionError
from gradconform.version import CONTRACT_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping


#: The folder with one file per version.
VERSIONS = Path(__file__).with_name("versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class FrozenCheck:
    """The frozen part of a check; ``trials`` has a digest per trial, of its stages' names, program and inputs.

    The judge is not frozen: a wrong judge is fixed in every version.
    """

    id: str
    level: str
    profile: Profile
    core: bool = False
    since: str
    requirement: str
    needs: tuple[str, ...]
    stages: tuple[str, ...]
    programs: tuple[str, ...]
    trials: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrozenContract:
    """One version: its release day (None before), its checks by id, and a digest of each stage they run on."""

    version: str
    released: str | None
    checks: Mapping[str, FrozenCheck]
    stages: Mapping[str, str]

    def text(self) -> str:
        """Return the text of the file, one line per check and stage, so that a diff shows each change separately."""
        checks = ",\n".join(json.dumps(asdict(check), ensure_ascii=False) for check in self.checks.values())
        stages = ",\n".join(f"{json.dumps(name)}: {json.dumps(digest)}" for name, digest in self.stages.items())
        head = f'"contract": {json.dumps(self.version)},\n"released": {json.dumps(self.released)},\n'
        return f'{{\n{head}"checks": [\n{checks}\n],\n"stages": {{\n{stages}\n}}\n}}\n'


def older(one: str, other: str) -> bool:
    """Return whether version ``one`` is older than ``other``, by number: 1.9 is older than 1.10."""
    return _number(one) < _number(other)


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def versions() -> tuple[str, ...]:
    """Return every version that can be run, the oldest first."""
    return tuple(sorted({CONTRACT_VERSION, *(path.stem for path in VERSIONS.glob("*.json"))}, key=_number))


def version_named(version: object) -> str:
    """Return the version; raise ``SelectionError`` for one that this kit does not have."""
    for known in versions():
        if known == version:
            return known
    msg = f"unknown contract version {version!r}; expected one of {', '.join(versions())}"
    raise SelectionError(msg)


def file_of(version: str) -> Path:
    """Return the path of a version's file, which may not exist yet."""
    return VERSIONS / f"{version}.json"


def frozen(version: str) -> FrozenContract | None:
    """Return the contents of a version's file; None if there is none."""
    path = file_of(version)
    return _read(path, path.stat().st_mtime_ns) if path.is_file() else None


@lru_cache(maxsize=8)
def _read(path: Path, written: int) -> FrozenContract:
    """Return the contents of a file; the cache key ``written`` changes with the file."""
    del written
    found = json.loads(path.read_text(encoding="utf-8"))
    checks = [FrozenCheck(**check) for check in tupled(found["checks"])]
    return FrozenContract(found["contract"], found["released"], {check.id: check for check in checks}, found["stages"])
