"""Text that others have written, as Markdown shows it: as it stands, with no effect."""

from __future__ import annotations

import re


def escaped(value: object) -> str:
    """Return text for a line or a cell of a table: no markup, no line break, no bar that would end the cell."""
    text = " ".join(str(value).split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", text)


def fenced(text: str, language: str = "text") -> str:
    """Return a block of code around ``text``, with a fence that is longer than any in it."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
