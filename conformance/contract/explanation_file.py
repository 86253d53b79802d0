"""The explanations of a version's checks that the version does not fix, as a file. Reading one imports no torch.

``gradconform contract --freeze`` writes it. It may be corrected in every version, since it fixes nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from gradconform.files.records import tupled

from . import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Program:
    """A program, its stages and their inputs."""

    text: str
    fed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedCheck:
    """The explanation of a check: its reason, the mistakes that it finds, its programs, and how it is judged."""

    why: str
    catches: str
    seed: str | None
    source: str
    tried: tuple[Program, ...]
    drawn: str
    legend: str
    judged: tuple[str, ...]
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExplainedStage:
    """The explanation of a stage: its special feature, its inputs, and its source."""

    special: str
    fed: str
    source: str


@dataclass(frozen=True, slots=True)
class Explained:
    """The explanations of checks and stages, by id and name."""

    checks: Mapping[str, ExplainedCheck]
    stages: Mapping[str, ExplainedStage]

    def text(self) -> str:
        """Return the text of the file, one line per check and stage."""
        parts = (_lines(self.checks), _lines(self.stages))
        return '{{\n"checks": {{\n{}\n}},\n"stages": {{\n{}\n}}\n}}\n'.format(*parts)


def _lines(several: Mapping[str, ExplainedCheck] | Mapping[str, ExplainedStage]) -> str:
    reported = (f"{json.dumps(name)}: {json.dumps(asdict(one), ensure_ascii=False)}" for name, one in several.items())
    return ",\n".join(reported)


def explanations_of(version: str) -> Path:
    """Return the path of a version's file, which may not exist yet."""
    return frozen.file_of(version).with_name("explanations") / f"{version}.json"


def explained(version: str) -> Explained:
    """Return the explanations of a version's checks from its file."""
    path = explanations_of(version)
    return _read(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _read(path: Path, written: int) -> Explained:
    """Return the contents of a file; the cache key ``written`` changes with the file."""
    del written
    found = json.loads(path.read_text(encoding="utf-8"))
    return Explained(
        {name: _check(values) for name, values in found["checks"].items()},
        {name: ExplainedStage(**values) for name, values in found["stages"].items()},
    )


def _check(values: dict[str, object]) -> ExplainedCheck:
    reported = tupled(values)
    return ExplainedCheck(**{**reported, "tried": tuple(Program(**one) for one in reported["tried"])})
