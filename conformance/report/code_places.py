"""The place in a target's code that a failure is about, for annotations and summaries."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gradconform.results import Report, Result
from gradconform.text.findings import letter_of

#: Folders with installed packages: their code is not the user's, even inside the user's folder.
_INSTALLED = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A file, relative to the user's folder if it is inside, and a line of it from 1; None if no line is known."""

    file: str
    line: int | None = None

    def __str__(self) -> str:
        """Return ``file:line``, as editors read it."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


def code_place(report: Report, result: Result, folder: Path) -> CodePlace | None:
    """Return where the first finding of ``result`` belongs in the target's code; None if the target has no file.

    The line is that of the innermost frame of an exception in the code of ``folder``, else that of the definition of
    the action.
    """
    finding = result.findings[0] if result.findings else {}
    for place in reversed(finding.get("places", ())):
        own = _in_folder(place["file"], folder)
        if own is not None:
            return CodePlace(own, place["line"])
    file = report.target.get("file")
    if not file:
        return None
    line = report.target.get("lines", {}).get(letter_of(str(finding.get("action", ""))))
    return CodePlace(_in_folder(str(file), folder) or shown_path(str(file), folder), line)


def _in_folder(file: str, folder: Path) -> str | None:
    """Return a file's path in ``folder``, where an installed package may have its source; None for other code."""
    path = Path(file)
    if _INSTALLED.isdisjoint(path.parts):
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else None
    sources = (Path(base, packaged_path(file)) for base in ("", "src"))
    return next((source.as_posix() for source in sources if (folder / source).is_file()), None)


def packaged_path(file: str) -> str:
    """Return a path of an installed file from its package on, which is shorter; any other path as it is."""
    parts = Path(file).parts
    inner = next((place for place, part in enumerate(parts) if part in _INSTALLED), None)
    return file if inner is None else Path(*parts[inner + 1 :]).as_posix()


def shown_path(file: str, folder: Path) -> str:
    """Return a path relative to ``folder`` if it is inside, else as it is."""
    path = Path(file)
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)
