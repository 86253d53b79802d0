"""Mistakes of writing that a message of the kit may have, whatever it is about."""

from __future__ import annotations

import re

#: Texts between quotes, code, and those of a target's exception or source, are others' words.
_OTHERS = re.compile(r"`[^`]*`|(?<!\w)'[^']*'|\"[^\"]*\"|raised \w+: [^;]*")
_PAIRS = {")": "(", "]": "[", "}": "{"}
#: An article before the end of a clause.
_ARTICLE = re.compile(r"\b(?:the|a|an)(?=\s*(?:[;,:)\]]|\.(?:\s|$)|$))")


def mistakes_in(message: str) -> list[str]:
    """Return what is wrong with the writing of each line of a message: one entry per mistake."""
    found = []
    for line in message.splitlines():
        text = _OTHERS.sub("'…'", line)
        if not _balanced(text):
            found.append(f"unbalanced brackets: {line}")
        if re.search(r"\S  ", text):
            found.append(f"double spaces: {line}")
        if _ARTICLE.search(text):
            found.append(f"an article without a noun: {line}")
        if re.search(r"\bn\b", text):
            found.append(f"a letter for a number: {line}")
        if re.search(r"\b(?:a [aeio]|an [^aeiouhAEFHILMNORSUX\W])", text):
            found.append(f"a for an, or an for a: {line}")
        clauses = [clause.strip() for clause in text.split(";")]
        found += [f"twice {clause!r}: {line}" for clause in {*clauses} if clauses.count(clause) > 1]
    return found


def _balanced(text: str) -> bool:
    opened: list[str] = []
    for character in text:
        if character in _PAIRS.values():
            opened.append(character)
        elif character in _PAIRS and (not opened or opened.pop() != _PAIRS[character]):
            return False
    return not opened
