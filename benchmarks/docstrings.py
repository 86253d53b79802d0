"""Read what a script says of itself, without running it."""

from __future__ import annotations

import ast
from pathlib import Path


def docstring(path: Path) -> str:
    """Return the docstring of a script, or an empty text if it has none."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def first_sentence(path: Path) -> str:
    """Return the first line of a script's docstring."""
    return docstring(path).partition("\n")[0]
