"""Single mistakes that explain several causes, the one that explains most first.

A result lists the mistakes that explain its findings: the findings disappear if plain autograd makes the same mistake.
A mistake is reported if it explains checks of several causes, or all causes of one check; unexplained findings keep
their own causes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradconform.results import Place, Result

from .by_cause import FailureGroup, Gone, by_cause, cause_of, groups, smallest_of

#: The least number of checks, or of causes of one check, that a mistake must explain.
_LEAST = 2

#: Kinds of mistakes that only a check shows in which the caller changes a value in flight.
_OF_CHANGES = {"forward_runs_again", "writes_uncounted", "weights_of_now"}

#: A mistake as its kind, its place and its factors.
_Key = tuple[str, tuple[str, ...], tuple[float, ...]]

#: The places of the findings of results that are not explained yet.
_Open = Mapping[Place, frozenset[int]]


@dataclass(frozen=True, slots=True)
class _Explained:
    """A mistake as text, the results with the findings that it explains, and how many more causes disappear.

    ``ends_others``: it also explains findings of other causes, whole or in part.
    """

    text: str
    results: tuple[Result, ...]
    gone: int
    ends_others: bool


def causes_of(failed: Sequence[Result], levels: Sequence[str] = ("MUST", "SHOULD")) -> list[FailureGroup]:
    """Return the causes of failures, level by level; a mistake that explains MUST and SHOULD belongs to the MUST."""
    found, left = _mistakes(failed)
    causes: list[FailureGroup] = []
    for level in levels:
        causes += [_as_cause(one, level) for one in found if level == min(result.level for result in one.results)]
        causes += by_cause(result for result in left if result.level == level)
    return causes


def _as_cause(one: _Explained, level: str) -> FailureGroup:
    """Return a mistake as a cause; its text is the first finding of its smallest result."""
    own = [result for result in one.results if result.level == level]
    smallest = smallest_of(own)
    first = groups([smallest.of_findings(smallest.findings[:1])])
    shown = cause_of([part for key, parts in groups(own).items() if key in first for part in parts])
    others = {result.check for result in own} - set(shown.checks)
    should = {result.check for result in one.results} - {result.check for result in own}
    gone = Gone(one.gone, len(others), len(should)) if one.ends_others else None
    return replace(shown, results=tuple(own), likely=one.text, needs="", gone=gone)


def _mistakes(failed: Sequence[Result]) -> tuple[list[_Explained], list[Result]]:
    """Return the mistakes, and the results with the findings that no mistake explains."""
    results = {result.place: result for result in failed}
    open_: dict[Place, frozenset[int]] = {place: frozenset(range(len(one.findings))) for place, one in results.items()}
    found: list[_Explained] = []
    tried: set[_Key] = set()
    while (best := _best(results, open_, tried)) is not None:
        key, text, explained = best
        tried.add(key)
        after = {place: numbers - explained.get(place, frozenset()) for place, numbers in open_.items()}
        parts = [_part(results[place], numbers) for place, numbers in explained.items()]
        largest = _largest(parts)
        gone = len(_groups(results, open_) - _groups(results, after) - {largest})
        ends_others = gone > 0 or any((part.level, *one) != largest for part in parts for one in groups([part]))
        if ends_others or key[0] in _OF_CHANGES:
            found.append(_Explained(text, tuple(parts), gone, ends_others))
            open_ = after
    left = [_part(one, open_[place]) for place, one in results.items() if open_[place] or not one.findings]
    return found, left


def _best(
    results: Mapping[Place, Result], open_: _Open, tried: set[_Key]
) -> tuple[_Key, str, dict[Place, frozenset[int]]] | None:
    """Return the mistake that explains most open findings, with these; of equals, the simplest."""
    explained: dict[_Key, dict[Place, frozenset[int]]] = {}
    texts: dict[_Key, str] = {}
    for place, result in results.items():
        for key, text, numbers in _explained(result):
            if key not in tried and numbers & open_[place]:
                explained.setdefault(key, {})[place] = numbers & open_[place]
                texts[key] = text
    several = [
        key
        for key, of in explained.items()
        if len(of) >= _LEAST or any(_is_enough(key, results[place], numbers) for place, numbers in of.items())
    ]
    most = {key: sum(map(len, explained[key].values())) for key in several}
    best = max(several, key=lambda key: (most[key], -len(key[1])), default=None)
    return None if best is None else (best, texts[best], explained[best])


def _is_enough(key: _Key, result: Result, numbers: frozenset[int]) -> bool:
    """Return whether a mistake explains all findings of a result, which has several causes or shows this kind best."""
    shown = key[0] in _OF_CHANGES or len(groups([result])) >= _LEAST
    return shown and len(numbers) == len(result.findings)


def _explained(result: Result) -> Iterator[tuple[_Key, str, frozenset[int]]]:
    """Yield each mistake that explains part of a result, as text, and the places of the explained findings."""
    for one in result.undone:
        mistake: Mapping[str, Any] = one["mistake"]
        key = (str(mistake["kind"]), tuple(mistake.get("names", ())), tuple(mistake.get("factors", ())))
        yield key, str(mistake["text"]), frozenset(range(len(result.findings))) - frozenset(one["left"])


def _groups(results: Mapping[Place, Result], open_: _Open) -> set[tuple[str, ...]]:
    """Return the keys that separate the open causes of MUST and SHOULD."""
    parts = [_part(one, open_[place]) for place, one in results.items() if open_[place] or not one.findings]
    levels = {part.level for part in parts}
    return {(level, *key) for level in levels for key in groups(one for one in parts if one.level == level)}


def _largest(parts: Sequence[Result]) -> tuple[str, ...]:
    """Return the key of the cause of most of these results, of a MUST if there is one."""
    level = min(part.level for part in parts)
    found = groups(part for part in parts if part.level == level)
    return (level, *max(found, key=lambda key: len(found[key])))


def _part(result: Result, numbers: frozenset[int]) -> Result:
    """Return a result with only some of its findings."""
    if len(numbers) == len(result.findings):
        return result
    return result.of_findings([finding for place, finding in enumerate(result.findings) if place in numbers])
