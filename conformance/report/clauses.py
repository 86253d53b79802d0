"""Requirements of checks of one topic: the words that all of them share are told once, then each one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradconform.trial.program import ProgramError, parse

#: A clause is told once for several checks where at least so many of its words are the same in all.
_SHARED_WORDS = 4

#: What stands in the shared words where each sentence has its own.
GAP = "…"


@dataclass(frozen=True, slots=True)
class Clause:
    """What several sentences share, with :data:`GAP` for what they do not, and each one's own words.

    ``shared`` is empty where they have too little in common, and then ``own`` are the sentences as they are.
    """

    shared: str
    own: tuple[str, ...]


def clause_of(sentences: Sequence[str]) -> Clause:
    """Return what the sentences share, and what each has of its own."""
    if len(sentences) == 1 or not all(sentence.endswith(".") for sentence in sentences):
        return Clause("", tuple(sentences))
    words = [sentence[:-1].split() for sentence in sentences]
    before = _alike(words)
    after = _alike([one[before:][::-1] for one in words])
    before -= _actions(words[0][:before][::-1])
    after -= _actions(words[0][len(words[0]) - after :])
    if before + after < _SHARED_WORDS:
        return Clause("", tuple(sentences))
    own = tuple(" ".join(one[before : len(one) - after]) for one in words)
    gap = [GAP] if any(own) else []
    shared = " ".join([*words[0][:before], *gap, *words[0][len(words[0]) - after :]])
    return Clause(shared if shared.endswith(GAP) else f"{shared}.", own)


def _actions(words: Sequence[str]) -> int:
    """Return how many actions stand at the end of what is shared: a program is not cut in two."""
    return next((number for number, word in enumerate(words) if not _is_action(word)), len(words))


def _is_action(word: str) -> bool:
    try:
        return bool(parse(word.rstrip(",")))
    except ProgramError:
        return False


def _alike(lists: Sequence[Sequence[str]]) -> int:
    """Return how many words all lists begin with."""
    columns = enumerate(zip(*lists, strict=False))
    return next((index for index, column in columns if len(set(column)) > 1), min(map(len, lists)))
