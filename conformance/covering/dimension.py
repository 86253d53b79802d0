"""Dimensions of a plan, the values of each, and constraints on pairs of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value.

    ``word`` names it in rows and in the ids of checks, and ``phrase`` is its text after "with". ``sets`` are fields of
    the plan, and ``claims`` are the needs that it adds. ``hides``: it makes some gradients None or zero, so that a row
    tests less of its other values.
    """

    word: str
    phrase: str
    sets: Mapping[str, Any] = field(default_factory=dict)
    claims: frozenset[str] = field(default_factory=frozenset)
    hides: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of a plan; its first value is the plain one, the default of a row."""

    name: str
    description: str
    values: tuple[Value, ...]

    @property
    def words(self) -> list[str]:
        """The words of the values, in order."""
        return [value.word for value in self.values]

    def value(self, word: str) -> Value:
        """Return the value of a word; raise ``KeyError`` if there is none."""
        for value in self.values:
            if value.word == word:
                return value
        msg = f"dimension {self.name!r} has no value {word!r}; expected one of {self.words}"
        raise KeyError(msg)


def value(word: str, phrase: str, *claims: str, **sets: Any) -> Value:
    """Return a value with the fields that it sets and the needs that it adds."""
    return Value(word=word, phrase=phrase, sets=sets, claims=frozenset(claims))


def hiding(word: str, phrase: str, *claims: str, **sets: Any) -> Value:
    """Return a value with which a row tests less of its other values."""
    return replace(value(word, phrase, *claims, **sets), hides=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A constraint: no row has any of ``these`` with any of ``those``, words by dimension."""

    because: str
    these: Mapping[str, frozenset[str]]
    those: Mapping[str, frozenset[str]]

    def forbids(self, row: Mapping[str, str]) -> bool:
        """Return whether a row or a partial row violates the constraint."""
        return any(
            row.get(one) in words and row.get(other) in others and one != other
            for one, words in self.these.items()
            for other, others in self.those.items()
        )


def never(because: str, these: dict[str, str], those: dict[str, str]) -> Constraint:
    """Return a constraint of words by dimension; spaces separate words."""
    one, other = ({name: frozenset(words.split()) for name, words in some.items()} for some in (these, those))
    return Constraint(because=because, these=one, those=other)


def allowed(row: Mapping[str, str], constraints: Iterable[Constraint]) -> bool:
    """Return whether the constraints allow a row or a partial row."""
    return not any(constraint.forbids(row) for constraint in constraints)
