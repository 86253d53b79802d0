"""Dimensions: what something planned can differ in, the values that each can take, and what cannot stand together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value.

    ``word`` names it in rows and in the ids of checks, ``phrase`` says it in a sentence behind "with". ``sets`` are
    fields of what is planned, and ``claims`` the needs that it adds to that.
    ``hides``: some gradients are none or zero with it, so that less is seen of the other values of a row.
    """

    word: str
    phrase: str
    sets: Mapping[str, Any] = field(default_factory=dict)
    claims: frozenset[str] = field(default_factory=frozenset)
    hides: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """What something planned can differ in; the first of its values is the plain one, to which a row is put back."""

    name: str
    says: str
    values: tuple[Value, ...]

    def value(self, word: str) -> Value:
        """Return the value of that word; raise ``KeyError`` where there is none."""
        for value in self.values:
            if value.word == word:
                return value
        msg = f"dimension {self.name!r} has no value {word!r}; expected one of {[one.word for one in self.values]}"
        raise KeyError(msg)


def value(word: str, phrase: str, *claims: str, **sets: Any) -> Value:
    """Return a value with the fields that it sets and the needs that it adds."""
    return Value(word=word, phrase=phrase, sets=sets, claims=frozenset(claims))


def hiding(word: str, phrase: str, *claims: str, **sets: Any) -> Value:
    """Return a value with which less is seen of the others."""
    return replace(value(word, phrase, *claims, **sets), hides=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What cannot, or is not to, be together: any of ``these`` with any of ``those``, words by dimension."""

    because: str
    these: Mapping[str, frozenset[str]]
    those: Mapping[str, frozenset[str]]

    def forbids(self, row: Mapping[str, str]) -> bool:
        """Tell whether a row, or the part of one that is there, has what is not to be together."""
        return any(
            row.get(one) in words and row.get(other) in others and one != other
            for one, words in self.these.items()
            for other, others in self.those.items()
        )


def never(because: str, these: dict[str, str], those: dict[str, str]) -> Constraint:
    """Return a constraint of words by dimension, several of them as one text."""
    one, other = ({name: frozenset(words.split()) for name, words in some.items()} for some in (these, those))
    return Constraint(because=because, these=one, those=other)


def allowed(row: Mapping[str, str], constraints: Iterable[Constraint]) -> bool:
    """Tell whether none of the constraints forbids a row, or the part of one that is there."""
    return not any(constraint.forbids(row) for constraint in constraints)
