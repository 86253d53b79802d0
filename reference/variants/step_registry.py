"""The right variants of training steps by name: runtimes with one difference, and the checks that test it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import nn

from gradconform.reference.runtime import PlainSession, idea_of
from gradconform.runtime import StepSpec


@dataclass(frozen=True, slots=True)
class StepVariant:
    """A right runtime: its difference from the plain one, the checks that test it, and its claims.

    A check is one of profile quick, or the first with these values in its row.
    """

    name: str
    what: str
    checks: tuple[str, ...]
    claims: Mapping[str, str]
    session: type[PlainSession]

    def open(self, stages: Mapping[int, nn.Module], spec: StepSpec) -> PlainSession:
        """Return the session of this rank."""
        return self.session(stages, spec)


#: Every right variant by name.
STEP_VARIANTS: dict[str, StepVariant] = {}


def right(*checks: str, **claims: str) -> Callable[[type[PlainSession]], type[PlainSession]]:
    """Register a session as a right variant that these checks test; its docstring describes the difference."""

    def add(session: type[PlainSession]) -> type[PlainSession]:
        name, what = idea_of(session)
        STEP_VARIANTS[name] = StepVariant(name, what, checks, claims, session)
        return session

    return add
