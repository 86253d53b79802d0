"""Layout of a script: its docstring, its imports, the space between definitions, and long lines of numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 112


def docstring(paragraphs: Iterable[str]) -> str:
    """Return paragraphs as the docstring of a script."""
    return '"""' + "\n\n".join(textwrap.fill(one, WIDTH, break_on_hyphens=False) for one in paragraphs) + '\n"""'


def spaced(definitions: Iterable[str]) -> list[str]:
    """Return definitions with spacing; consecutive constants are joined into one."""
    found: list[str] = []
    above = False
    for text in definitions:
        constant = not text.startswith(("class ", "def ", "@"))
        found[-1:] = [f"{found[-1]}\n{text}"] if constant and above else [*found[-1:], text]
        above = constant
    return found


def merged(imports: set[str]) -> list[str]:
    """Return import lines, one per module, torch's last."""
    named: dict[str, list[str]] = {}
    for line in sorted(imports):
        module, _, name = line.partition(" import ")
        named.setdefault(module, []).append(name)
    lines = [" import ".join(filter(None, (module, ", ".join(names)))) for module, names in named.items()]
    return sorted(lines, key=lambda line: "torch" in line)


def folded(text: str) -> str:
    """Fold the lines of numbers, which may be broken after any comma inside their brackets."""
    return "\n".join(broken(line) if "torch.tensor(" in line else line for line in text.splitlines())


def broken(line: str) -> str:
    """Return a line of values, broken at spaces inside its brackets if it is long."""
    if len(line) <= WIDTH:
        return line
    return textwrap.fill(line, WIDTH, subsequent_indent=" " * 12, break_long_words=False, break_on_hyphens=False)
