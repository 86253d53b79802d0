"""Which of torch's own tests of pipelines is covered by what: `python benchmarks/seeds.py --write docs/seeds.md`.

The names per release and what covers each are data, in seeds.toml beside this file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
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
    said: str
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
    yield "# torch's own tests, and what covers them here"
    yield ""
    yield f"Written by `{COMMAND}` from `benchmarks/seeds.toml`."
    yield ""
    yield "Each row is a test of `test/distributed/pipelining`, or of the composability of pipelines, and what"
    yield "covers it here: a check, or the command that runs it; or why none does. `gradconform run` runs the contract,"
    yield "`gradconform stage-objects` the checks `stage.*`, `gradconform schedule-text` the checks `schedule_text.*`,"
    yield "`gradconform pipeline` the checks `pipeline.*`. What test_backward.py asks stands at each check in"
    yield f"[contract.md](contract.md) as well. Of {len(found)} tests {covered} are covered and {len(found) - covered}"
    yield "refused."
    yield ""


def _releases(data: Mapping[str, Any]) -> Iterator[str]:
    for release, known in data["releases"].items():
        count = sum(map(len, known["files"].values()))
        read = "".join(f" {file}: {version};" for file, version in known.get("read", {}).items())
        yield f"- torch {release}, {count} tests. {known['note']}{read.rstrip(';')}{'.' if read else ''}"
    yield ""


def _files(data: Mapping[str, Any]) -> Iterator[str]:
    releases, newest = named(data), list(data["releases"])[-1]
    found = rows(data)
    for file in dict.fromkeys(row.file for row in found):
        own = [row for row in found if row.file == file]
        yield from (f"## {file}", "", "| test | covered by | in |", "|---|---|---|")
        for row in own:
            where = ", ".join(releases.get((file, row.test), [])) or f"none up to {newest}"
            yield f"| {row.test} | {row.said if row.covered else f'not covered: {row.said}'} | {where} |"
        yield ""


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
