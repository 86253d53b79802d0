"""What code imports, for tests of scripts that may import little."""

from __future__ import annotations

import ast


def packages_imported(code: str) -> set[str]:
    """Return the packages that code imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").partition(".")[0])
    return found
