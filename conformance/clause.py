"""What a check asks, whatever tries it, and the one way from what was seen to a result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from .results import Result

Level = Literal["MUST", "SHOULD"]
J = TypeVar("J", bound=Callable[..., object])


class Seen(Protocol):
    """One wrong thing: its kind, a line of a message as text, and its values in a report."""

    @property
    def kind(self) -> str:
        """What is wrong."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One requirement: a sentence with its level, and ``why``, what goes wrong in practice without it.

    ``core`` says that no claim can withhold it.

    What tries it stands with it: the trials of a check of the contract, a pipeline's schedule, or, in a mapping of
    clauses, a function that is called with what is judged.
    """

    id: str
    level: Level
    requirement: str
    why: str = ""
    core: bool = False

    @classmethod
    def of(cls, name: str, judge: Callable[..., object], **words: object) -> Clause:
        """Return the clause with this id that the docstring of what judges it says; ``words`` are filled in."""
        requirement, *why = (part.format(**words) for part in paragraphs(judge))
        level: Level = "SHOULD" if "SHOULD" in requirement else "MUST"
        return Clause(id=name, level=level, requirement=requirement, why=" ".join(why))

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that try it, one per trial; none where there are no trials."""
        return ()

    @property
    def tried(self) -> str:
        """What it is tried by, as the first line of a message; empty where the requirement says all."""
        return ""

    def result(self, device: str, dtype: str, findings: Sequence[Seen] = (), **values: Any) -> Result:
        """Return the result on a device and dtype: passed, or failed by ``findings``; ``values`` are fields of it."""
        lines = [self.tried, *map(str, findings)] if findings else []
        told = {
            "level": self.level,
            "status": "failed" if findings else "passed",
            "message": "\n".join(filter(None, lines)),
            "kind": findings[0].kind if findings else None,
            "findings": tuple(finding.to_dict() for finding in findings),
        }
        given = {"check": self.id, "requirement": self.requirement, "programs": self.programs, "core": self.core}
        return Result(device=device, dtype=dtype, **{**given, **told, **values})


def paragraphs(said: Callable[..., object]) -> list[str]:
    """Return the paragraphs of a docstring, each as one line: the requirement, then why it is one."""
    return [" ".join(part.split()) for part in (inspect.getdoc(said) or "").split("\n\n")]


def register(checks: dict[Clause, J], name: str) -> Callable[[J], J]:
    """Add what is decorated to ``checks``, under the clause with this id that its docstring says."""

    def added(judge: J) -> J:
        checks[Clause.of(name, judge)] = judge
        return judge

    return added
