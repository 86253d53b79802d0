"""What the kit found wrong in other projects, ready to be offered to them: a record of each, and a short test.

A TOML file holds the records of one project, the folder of its name a test for each, in the style of the project's own
suite and on the project alone. A test asks for what is right: it fails on the version that the record names, and passes
once that is mended. Nothing here imports torch, and nothing is sent anywhere.
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
    """A confirmed defect as it can be offered to its project.

    ``title`` and ``told`` are what the ``script`` that confirms it says, a path in the kit's repository. ``place`` is
    where the cause is likely to be, ``mend`` the direction of a mend, ``fails`` how the test ends on ``version``.
    ``since`` and ``mended`` are the releases that have brought it and mended it, in turn, where several were tried;
    ``issues`` are public reports of it, or of what is near, by their numbers. ``suite`` is the folder of the project's
    own tests that the test would go into, empty where that is not known, and ``run`` what runs it.
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
        """What a user types, such as ``torch/view-output``."""
        return f"{self.project}/{self.key}"

    @property
    def stem(self) -> str:
        """What its files are called."""
        return self.key.replace("-", "_")

    @property
    def test(self) -> str:
        """The text of its test."""
        return (_HERE / self.project / f"test_{self.stem}.py").read_text(encoding="utf-8")

    @property
    def releases(self) -> str:
        """The releases that have it, in words; empty where one alone was tried."""
        spans = zip_longest(self.since, self.mended)
        return ", and ".join(f"{since}, mended in {mended}" if mended else f"since {since}" for since, mended in spans)

    @property
    def links(self) -> tuple[str, ...]:
        """Where it, or what is near, is reported."""
        return tuple(f"https://github.com/{self.repository}/issues/{number}" for number in self.issues)


def offers() -> dict[str, Offer]:
    """Return every offer by its name, those of one project behind each other."""
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
