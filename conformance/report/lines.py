"""Report lines for a terminal: text without colour, and the role that sets the colour."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Role = Literal["plain", "heading", "good", "bad", "warning", "faint"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of output; ``str`` of it is its text."""

    text: str = ""
    role: Role = "plain"

    def __str__(self) -> str:
        """Return the text without colour."""
        return self.text


def wrapped(text: str, width: int, *, indent: int = 0, hanging: int = 0, role: Role = "plain") -> list[Line]:
    """Wrap ``text`` between words; lines after the first are indented by ``hanging`` more. Words are never broken."""
    lines = textwrap.wrap(
        text,
        max(width, indent + hanging + 20),
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Line(line, role) for line in lines]


def heading(text: str, width: int, role: Role = "heading") -> Line:
    """Return a heading that fills the line, as pytest's do."""
    return Line(f" {text} ".center(width, "="), role)


def wrapped_each(
    texts: Iterable[str], width: int, *, indent: int = 0, hanging: int = 0, role: Role = "plain"
) -> list[Line]:
    """Wrap several texts, each starting on a new line."""
    return [line for text in texts for line in wrapped(text, width, indent=indent, hanging=hanging, role=role)]


def with_own_indent(text: str, width: int, *, indent: int = 0, hanging: int = 2) -> list[Line]:
    """Return a message line with its own indentation, such as a traceback line; long lines are wrapped."""
    own = text.lstrip()
    return wrapped(own, width, indent=indent + len(text) - len(own), hanging=hanging)


def command_lines(label: str, command: str, width: int, *, indent: int = 0) -> list[Line]:
    """Return a labelled command; a long one is split over several lines in shell syntax."""
    lines = [f"{' ' * indent}{label}:"]
    for word in map(shlex.quote, shlex.split(command)):
        if len(lines[-1]) + len(word) + 3 > width and lines[-1].strip() != f"{label}:":
            lines.append(" " * (indent + 2))
        lines[-1] += f" {word}"
    return [Line(f"{line} \\") for line in lines[:-1]] + [Line(lines[-1])]


def listed(name: str, texts: Sequence[str], width: int, role: Role = "heading") -> list[Line]:
    """Return texts under a heading with their number; empty if there are none."""
    if not texts:
        return []
    reported = wrapped_each((" ".join(text.split()) for text in texts), width, indent=2, hanging=4)
    return [heading(f"{name}: {len(texts)}", width, role), *reported, Line()]


def clause(counted: str) -> str:
    """Return the group that checks belong to, followed by a comma if it contains one."""
    return f"{counted}," if ", " in counted else counted
