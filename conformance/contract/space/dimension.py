"""A dimension of the space of trials: a name, what it says of a trial, and the values it can take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One value.

    ``word`` names it in rows and in the ids of checks, ``said`` says it in a sentence behind "with". ``sets`` are
    fields of a :class:`~gradconform.contract.space.draft.Draft`, and ``claims`` the needs that it adds to a trial.
    ``hides``: some gradients are none or zero with it, so that less is seen of the other values of a row.
    """

    word: str
    said: str
    sets: Mapping[str, Any] = field(default_factory=dict)
    claims: frozenset[str] = field(default_factory=frozenset)
    hides: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """What a trial can differ in; the first of its values is the plain one, to which a row is put back."""

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


def value(word: str, said: str, *claims: str, **sets: Any) -> Value:
    """Return a value with the fields that it sets and the needs that it adds."""
    return Value(word=word, said=said, sets=sets, claims=frozenset(claims))


def hiding(word: str, said: str, *claims: str, **sets: Any) -> Value:
    """Return a value with which less is seen of the others."""
    return replace(value(word, said, *claims, **sets), hides=True)
