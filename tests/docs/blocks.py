"""The blocks of the pages, and the comments above them that define how each is run.

``<!-- test: WORDS -->`` above a block has these words:

- ``file PATH``: the block is written there.
- ``last PATH``: the block replaces the last line there.
- ``exit N ...``: the allowed exit codes; 0 otherwise.
- ``ctrl-c FILE``: ctrl-C is pressed when FILE has the results of 400 checks; the profile is standard.
- ``pytest``: the block is a test file.
- ``apart``: the block runs in a copy of the folder.
- ``compiles``: the block is only compiled.
- ``no: REASON``: the block is not run here.
- ``untyped: REASON``: the types of the block are not checked.
- ``output``: the output of the previous block, with an ``…`` for omitted text.

A block that prints is followed by its output. If its commands print nothing on standard output, it has ``silent``. A
block without a comment is run unchanged.
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
    """One block of a page: its language, its text, and the words above it."""

    page: str
    language: str
    text: str
    notes: tuple[str, ...]

    def note(self, word: str) -> str | None:
        """Return the text after a word above the block, None if the word is missing."""
        found = [one.removeprefix(word).strip() for one in self.notes if one.split()[0] == word]
        return found[0] if found else None

    @property
    def reason(self) -> str | None:
        """The reason why it is not run here, None if it is."""
        if any("executes the next block" in one for one in self.notes):
            return ".ci/run executes it"
        return self.note("no:")

    @property
    def exits(self) -> set[int]:
        """The allowed exit codes of a line."""
        return {int(code) for code in (self.note("exit") or "0").split()}

    @property
    def torch(self) -> str | None:
        """The first release of torch that it names, such as ``2.13.0``; None if it names none."""
        found = re.search(r"torch (\d+\.\d+\.\d+)", self.text)
        return None if found is None else found[1]

    def written_to(self, folder: Path) -> bool:
        """Write the block where its words say; return whether they name a file."""
        name, last = self.note("file"), self.note("last")
        path = folder / (name or last or "")
        if name is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text, encoding="utf-8")
        elif last is not None:
            kept = path.read_text(encoding="utf-8").splitlines()[:-1]
            path.write_text("\n".join([*kept, self.text]), encoding="utf-8")
        return name is not None or last is not None

    def lines(self) -> Iterator[str]:
        """Yield its commands, each with its continuation lines."""
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.strip() and not line.startswith("#"):
                yield line

    def commands(self) -> Iterator[list[str]]:
        """Yield the words of its commands, without comments and shell operators."""
        for line in self.lines():
            command: list[str] = []
            for word in [*shlex.split(line, comments=True), "&&"]:
                if word in {"&&", ">>", ">", "|"}:
                    yield command
                    command = []
                elif word != "2>&1":
                    command.append(word)


def shows(expected: str, printed: str) -> bool:
    """Return whether a page shows the printed words, with any numbers and profile; ``…`` is any text."""
    parts = [re.escape(part.strip("\n")) for part in _unnumbered(expected).split("…")]
    return re.search(r"[^\0]*?".join(parts), _unnumbered(printed)) is not None


def _unnumbered(text: str) -> str:
    """Return a text with one letter per number and profile, one space per gap, and without lines of signs.

    They differ between machines, as do the build of torch (``+cpu``) and the check that a signal interrupts, and the
    tests run a quicker profile.
    """
    text = re.sub(r"(torch [\d.]+)\+\w+", r"\1", text)
    text = re.sub(r"profile (quick|standard|full)", "profile P", text)
    text = re.sub(r"(?<=interrupted in )\S+;", "CHECK;", text)
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
