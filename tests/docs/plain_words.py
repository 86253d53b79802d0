"""Measure plain English: words per sentence, and words that the project replaces by plain ones.

A text of any kind is measured alike: a page, a message, a help line or a sentence of the contract.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

#: Words with a private meaning, each with the plain words that replace it.
LISTED = {
    r"headroom": "error/bound",
    r"tell(?:s|ing)?|told": "report",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:is|are|was|be) asked|asks|asked": "require, check",
    r"let(?:s|ting)? go(?: of)?": "free",
    r"by (?:itself|themselves)": "alone",
    r"apart(?: from)?": "separately, except",
    r"stands?|stood": "is",
    r"lies|lying": "is",
    r"idle waivers?": "unused waiver",
    r"not done": "unsupported",
    r"the host": "the CPU",
    r"has come|have come|comes": "arrives, is returned",
    r"for want of|all the same|goes without saying|nobody's rule": "say it directly",
    r"somebody|whoever|nobody": "name the subject",
    r"(?<!left )(?<!leaves )behind": "after",
    r"unlike the CPU(?:'s)?": "different from the CPU's",
    r"(?:can|may|could) rest on": "support",
    r"disappears? with it": "fixing this also fixes",
    r"received over": "overwritten by a receive",
    r"already there": "existing",
    r"joins the zoo": "is added to the zoo",
}

_LISTED = {word: re.compile(rf"(?<![\w-])(?:{word})(?![\w-])", re.IGNORECASE) for word in LISTED}
_CODE = re.compile(r"``[^`]+``|`[^`]+`")
#: A program: actions such as F0 or drop1, and the words that may follow them, is one name.
_PROGRAM = re.compile(
    r"(?<![\w-])\d*[A-Za-z_]+\d+!?(?: (?:\d*[A-Za-z_]+\d+!?|\d*(?:finish|close|reopen|collect|step|replace|rebind"
    r"|restride|bucket|hook|unhook|zero_none|zero_fill)!?|…))*(?: \(\d+ actions\))?"
)
#: A full stop ends a sentence, unless it is one of an initial or of an abbreviation.
_END = re.compile(r"(?<=[.!?])(?<!\b[A-Z]\.)(?<!\bSci\.)(?<!\bComput\.)\)?\s+(?=[A-Z`(*]|gradconform )")
_WORD = re.compile(r"[^\s]*\w[^\s]*")


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text; each item of a list, which follows a colon and has semicolons, is one of its own.

    A code span and a program, such as ``F0 F1 B0 B1``, are one word each.
    """
    plain = _PROGRAM.sub("PROGRAM", _CODE.sub("CODE", text))
    for sentence in _END.split(plain):
        head, colon, items = sentence.partition(": ")
        if colon and ";" in items:
            yield head
            yield from (item.strip() for item in items.split(";"))
        elif sentence.strip():
            yield sentence


def words(sentence: str) -> int:
    """Return the number of words in a sentence."""
    return len(_WORD.findall(sentence))


def listed(text: str) -> Counter[str]:
    """Return how often a text uses each of the listed words, outside of code."""
    prose = _CODE.sub("CODE", text)
    return Counter({word: count for word, pattern in _LISTED.items() if (count := len(pattern.findall(prose)))})


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of several texts: the number of sentences, their words, the longest one, and the listed words."""

    sentences: int
    words: int
    longest: str
    listed: Counter[str]

    @property
    def mean(self) -> float:
        """The mean number of words per sentence."""
        return self.words / max(self.sentences, 1)

    @property
    def most(self) -> int:
        """The words of the longest sentence."""
        return words(self.longest)


def figures(texts: Iterable[str]) -> Figures:
    """Return the figures of several texts together."""
    held = list(texts)
    found = [one for text in held for one in sentences(text)]
    counted: Counter[str] = Counter()
    for text in held:
        counted.update(listed(text))
    return Figures(len(found), sum(map(words, found)), max(found, key=words, default=""), counted)


_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def prose(page: str) -> list[str]:
    """Return the paragraphs, items and titles of a page of Markdown; code, tables and comments are no prose."""
    text = _LINK.sub(r"\1", _FENCE.sub("", _COMMENT.sub("", page)))
    found: list[str] = []
    for block in text.split("\n\n"):
        for line in block.splitlines():
            if line.startswith(("    ", "|")) or not line.strip():
                continue
            starts = line.startswith(("- ", "#", "* ")) or not found or found[-1] == ""
            part = line.strip().lstrip("#-").strip().replace("*", "")
            if starts:
                found.append(part)
            else:
                found[-1] = f"{found[-1]} {part}"
        found.append("")
    return [one for one in found if one]
