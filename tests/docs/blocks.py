"""The blocks of the pages, and what the comments above them say of how each is run.

``<!-- test: WORDS -->`` above a block says: ``file PATH`` (it is written there), ``last PATH`` (it takes the place of
the last line there), ``exit N ...`` (a line may end so; 0 otherwise), ``pytest`` (it is a file of tests), ``apart``
(it is run in a copy of the folder), ``compiles`` (no more than that), ``no: REASON`` (it is not run here), ``untyped:
REASON`` (its types are not checked), ``output`` (what the block before it prints, with an ``…`` for what is left out).
A block that prints is followed by its output; one of commands that print nothing on standard output says ``silent``.
One without is run as it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"((?:^<!-- .*? -->\n)*)^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """One block of a page: its language, its text, and what is said above it."""

    page: str
    language: str
    text: str
    told: tuple[str, ...]

    def said(self, word: str) -> str | None:
        """Return what stands behind a word above the block, None where it is not there."""
        found = [one.removeprefix(word).strip() for one in self.told if one.split()[0] == word]
        return found[0] if found else None

    @property
    def reason(self) -> str | None:
        """Why it is not run here, None where it is."""
        if any("executes the next block" in one for one in self.told):
            return ".ci/run executes it"
        return self.said("no:")

    @property
    def exits(self) -> set[int]:
        """How a line of it may end."""
        return {int(code) for code in (self.said("exit") or "0").split()}

    def lines(self) -> Iterator[str]:
        """Yield its commands, with what goes on in the next line."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield line

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of its commands, without comments and without what the shell does with them."""
        for line in self.lines():
            command: list[str] = []
            for word in [*shlex.split(line, comments=True), "&&"]:
                if word in {"&&", ">>", ">", "|"}:
                    yield command
                    command = []
                elif word != "2>&1":
                    command.append(word)


def shows(told: str, printed: str) -> bool:
    """Tell whether a page shows what was printed: the same words, whatever numbers and profile; ``…`` is any text."""
    parts = [re.escape(part.strip("\n")) for part in _unnumbered(told).split("…")]
    return re.search(r"[^\0]*?".join(parts), _unnumbered(printed)) is not None


def _unnumbered(text: str) -> str:
    """Return a text with one letter for each number and profile and one space for each gap, and no lines of signs.

    They differ between machines, and the tests run a quicker profile than the page.
    """
    text = re.sub(r"profile (quick|standard|full)", "profile P", text)
    return re.sub(r"\s+", " ", re.sub(r"\d[\d.,]*(e[+-]?\d+)?", "N", re.sub(r"={3,}", "", text))).strip()


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, in order."""
    return [
        Block(page.name, language, text, tuple(re.findall(r"<!-- (?:test: )?(.*?) -->", above)))
        for above, language, text in _BLOCK.findall(page.read_text(encoding="utf-8"))
    ]


def pages() -> list[Path]:
    """Return README.md and every page of the site that has a block."""
    return [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))) if blocks(page)]
