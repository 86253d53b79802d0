"""Defects that the kit found in other projects, ready to be offered to them: a record of each, and a short test.

A TOML file has the records of one project. The folder of its name has one test for each, in the style of the project's
own suite, which uses only the project. A test checks for the right behaviour: it fails on the version in the record,
and passes after a fix. Nothing here imports torch, and nothing is sent anywhere.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Offer", "offers"]

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A confirmed defect in the form that its project receives.

    ``title`` and ``told`` describe what ``script`` confirms, a path in the kit's repository. ``place`` is the likely
    location of the cause, ``mend`` the direction of a fix, and ``fails`` the test's outcome on ``version``. ``since``
    and ``mended`` are the releases that introduced and fixed it, in turn, if several were tried. ``issues`` are the
    numbers of public reports of it, or of similar defects. ``suite`` is the folder of the project's own tests for the
    test, empty if unknown, and ``run`` is the command that runs it.
    """

    project: str
    key: str
    title: str
    place: str
    mend: str
    fails: str
    script: str
    repository: str
    version: str
    suite: str
    run: str
    told: str = ""
    since: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    issues: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The name that a user types, such as ``torch/view-output``."""
        return f"{self.project}/{self.key}"

    @property
    def stem(self) -> str:
        """The base name of its files."""
        return self.key.replace("-", "_")

    @property
    def test(self) -> str:
        """The text of its test."""
        return (_HERE / self.project / f"test_{self.stem}.py").read_text(encoding="utf-8")

    @property
    def releases(self) -> str:
        """The releases with the defect, as text; empty if only one was tried."""
        spans = zip_longest(self.since, self.mended)
        return ", and ".join(f"{since}, mended in {mended}" if mended else f"since {since}" for since, mended in spans)

    @property
    def links(self) -> tuple[str, ...]:
        """The addresses of reports of it, or of similar defects."""
        return tuple(f"https://github.com/{self.repository}/issues/{number}" for number in self.issues)


def offers() -> dict[str, Offer]:
    """Return every offer by its name, grouped by project."""
    return {one.name: one for path in sorted(_HERE.glob("*.toml")) for one in _of_project(path)}


def _of_project(path: Path) -> list[Offer]:
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    found = []
    for key, record in table.pop("defects").items():
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in {**table, **record}.items()
        }
        found.append(Offer(project=path.stem, key=key, **given))
    return found
