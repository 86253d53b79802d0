"""Write which checks cover torch's own pipelining tests: `python benchmarks/seeds.py --write docs/seeds.md`.

The names of the tests per release, and what covers each, are data in seeds.toml in this folder.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DATA = Path(__file__).with_name("seeds.toml")
COMMAND = "python benchmarks/seeds.py --write docs/seeds.md"


@dataclass(frozen=True, slots=True)
class Row:
    """One of torch's tests: its file, its name, and what covers it, or why nothing does."""

    file: str
    test: str
    explanation: str
    covered: bool


def rows(data: Mapping[str, Any]) -> list[Row]:
    """Return a row per test that is covered or refused, in the order of the data."""
    kinds = (("covered", "by", True), ("refused", "why", False))
    return [
        Row(entry["file"], test, entry[key], is_covered)
        for kind, key, is_covered in kinds
        for entry in data[kind]
        for test in entry["tests"]
    ]


def named(data: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return, by file and name, the releases that have a test."""
    found: dict[tuple[str, str], list[str]] = {}
    for release, known in data["releases"].items():
        for file, tests in known["files"].items():
            for test in tests:
                found.setdefault((file, test), []).append(release)
    return found


def page(data: Mapping[str, Any]) -> str:
    """Return docs/seeds.md."""
    return "\n".join([*_head(data), *_releases(data), *_files(data)]).rstrip("\n") + "\n"


def _head(data: Mapping[str, Any]) -> Iterator[str]:
    found = rows(data)
    covered = sum(row.covered for row in found)
    yield "# torch's own tests, and what covers them"
    yield ""
    yield "This page is for reviewers and contributors. It lists torch's tests in `test/distributed/pipelining`, and of"
    yield "the composability of pipelines, and the checks that cover them."
    yield f"Of {len(found)} tests, {covered} are covered; each of the other {len(found) - covered} has a reason."
    yield f"`{COMMAND}` writes it from `benchmarks/seeds.toml`."
    yield ""
    yield "| check | run by |"
    yield "|---|---|"
    yield "| `pipeline.*`, `step.*` | `gradconform pipeline` |"
    yield "| `stage.*` | `gradconform stage-objects` |"
    yield "| `schedule_text.*` | `gradconform schedule-text` |"
    yield "| any other | `gradconform run`; the [contract](contract.md) names the tests of test_backward.py too |"
    yield ""


def _releases(data: Mapping[str, Any]) -> Iterator[str]:
    for release, known in data["releases"].items():
        yield f"- torch {release}, {sum(map(len, known['files'].values()))} tests. {known['note']}"
    yield ""


def _files(data: Mapping[str, Any]) -> Iterator[str]:
    found = rows(data)
    read = {file: version for known in data["releases"].values() for file, version in known.get("read", {}).items()}
    for file in dict.fromkeys(row.file for row in found):
        yield from (f"## {file}", "")
        if file in read:
            yield from (f"Read for torch {list(data['releases'])[-1]}: {read[file]}.", "")
        yield from ("| torch's tests | covered by | in |", "|---|---|---|")
        for (text, where), tests in _grouped([row for row in found if row.file == file], data).items():
            yield f"| {', '.join(tests)} | {text} | {where} |"
        yield ""


def _grouped(some: Sequence[Row], data: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """Return the tests by what the page says of them: what covers them or why nothing does, and their releases."""
    releases, newest = named(data), list(data["releases"])[-1]
    found: dict[tuple[str, str], list[str]] = {}
    for row in some:
        text = row.explanation if row.covered else f"not covered: {row.explanation}"
        where = ", ".join(releases.get((row.file, row.test), [])) or f"none up to {newest}"
        found.setdefault((text, where), []).append(row.test)
    return found


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="PATH", type=Path)
    options = parser.parse_args()
    text = page(tomllib.loads(DATA.read_text(encoding="utf-8")))
    if options.write is None:
        print(text, end="")
    else:
        options.write.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
