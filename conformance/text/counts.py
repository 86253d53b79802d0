"""Counts of things in words: ``1 check``, ``2 checks``."""

from __future__ import annotations


def count(number: int, noun: str, several: str = "") -> str:
    """Return ``1 check`` or ``2 checks``; ``several`` is an irregular plural.

    >>> count(1, "entry"), count(2, "entry"), count(3, "loss"), count(4, "index", "indices")
    ('1 entry', '2 entries', '3 losses', '4 indices')
    """
    if number == 1:
        return f"{number} {noun}"
    if noun.endswith(("ch", "s")):
        return f"{number} {several or f'{noun}es'}"
    return f"{number} {several or (f'{noun[:-1]}ies' if noun.endswith('ry') else f'{noun}s')}"
