"""Requirements of checks of one topic: the shared words once, then each check's own words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradconform.trial.program import ProgramError, parse

#: The least number of shared words for which several checks share one clause.
_SHARED_WORDS = 4

#: The mark in the shared words at which each sentence has its own.
GAP = "…"


@dataclass(frozen=True, slots=True)
class Clause:
    """The words that several sentences share, with :data:`GAP` for the others, and each sentence's own words.

    If the sentences have too little in common, ``shared`` is empty and ``own`` holds whole sentences.
    """

    shared: str
    own: tuple[str, ...]


def clause_of(sentences: Sequence[str]) -> Clause:
    """Return the shared words of the sentences, and each one's own words."""
    if len(sentences) == 1 or not all(sentence.endswith(".") for sentence in sentences):
        return Clause("", tuple(sentences))
    words = [sentence[:-1].split() for sentence in sentences]
    before = _alike(words)
    after = _alike([one[before:][::-1] for one in words])
    before -= _actions(words[0][:before][::-1])
    after -= _actions(words[0][len(words[0]) - after :])
    before = next(one for one in range(before, -1, -1) if _can_end(words[0][:one]))
    after = next(one for one in range(after, -1, -1) if _opened(words[0][len(words[0]) - one :]) >= 0)
    if before + after < _SHARED_WORDS:
        return Clause("", tuple(sentences))
    own = tuple(" ".join(one[before : len(one) - after]) for one in words)
    gap = [GAP] if any(own) else []
    shared = " ".join([*words[0][:before], *gap, *words[0][len(words[0]) - after :]])
    return Clause(shared if shared.endswith(GAP) else f"{shared}.", own)


def _actions(words: Sequence[str]) -> int:
    """Return the number of actions at the end of the shared words, so that no program is cut in two."""
    return next((number for number, word in enumerate(words) if not _is_action(word)), len(words))


def _can_end(words: Sequence[str]) -> bool:
    """Return whether a gap may follow the words: after an article or in brackets, a part of it has no meaning."""
    return _opened(words) <= 0 and words[-1:] not in (["the"], ["a"], ["an"])


def _opened(words: Sequence[str]) -> int:
    """Return the number of opening brackets minus that of closing ones."""
    text = " ".join(words)
    return text.count("(") - text.count(")")


def _is_action(word: str) -> bool:
    if word == GAP:  # that of a shortened program
        return True
    try:
        return bool(parse(word.rstrip(",")))
    except ProgramError:
        return False


def _alike(lists: Sequence[Sequence[str]]) -> int:
    """Return the number of words with which all lists begin."""
    columns = enumerate(zip(*lists, strict=False))
    return next((index for index, column in columns if len(set(column)) > 1), min(map(len, lists)))
