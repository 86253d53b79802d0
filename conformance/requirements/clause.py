"""The requirement of a check, and the conversion of findings into a result."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from gradconform.results import Result

Level = Literal["MUST", "SHOULD"]
J = TypeVar("J", bound=Callable[..., object])


class Seen(Protocol):
    """One deviation: its kind, a message line as text, and its values in a report."""

    @property
    def kind(self) -> str:
        """The kind of the deviation."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """One requirement: a sentence with its level, and ``why``, the practical failure that it prevents.

    ``core`` says that no claim can withhold it.

    Subclasses add how it is tried: the trials of a contract check or a pipeline's schedule. In a mapping of clauses,
    each is paired with a function that is called with the judged object.
    """

    id: str
    level: Level
    requirement: str
    why: str = ""
    core: bool = False

    @classmethod
    def of(cls, name: str, judge: Callable[..., object], **words: object) -> Clause:
        """Return the clause with this id from the docstring of its judge; ``words`` fill its placeholders."""
        requirement, *why = (part.format(**words) for part in paragraphs(judge))
        level: Level = "SHOULD" if "SHOULD" in requirement else "MUST"
        return Clause(id=name, level=level, requirement=requirement, why=" ".join(why))

    @property
    def programs(self) -> tuple[str, ...]:
        """The programs that try it, one per trial; empty without trials."""
        return ()

    @property
    def tried(self) -> str:
        """How it is tried, as the first line of a message; empty if the requirement says all."""
        return ""

    def result(self, device: str, dtype: str, findings: Sequence[Seen] = (), note: str = "", **values: Any) -> Result:
        """Return the result on a device and dtype: passed, or failed by ``findings``; ``values`` set further fields.

        ``note`` is a line of the message before its findings.
        """
        lines = [self.tried, note, *map(str, findings)] if findings else []
        reported = {
            "level": self.level,
            "status": "failed" if findings else "passed",
            "message": "\n".join(filter(None, lines)),
            "kind": findings[0].kind if findings else None,
            "findings": tuple(finding.to_dict() for finding in findings),
        }
        given = {"check": self.id, "requirement": self.requirement, "programs": self.programs, "core": self.core}
        return Result(device=device, dtype=dtype, **{**given, **reported, **values})


def paragraphs(clause: Callable[..., object]) -> list[str]:
    """Return the paragraphs of a docstring, each as one line: the requirement, then its reason."""
    return [" ".join(part.split()) for part in (inspect.getdoc(clause) or "").split("\n\n")]


def register(checks: dict[Clause, J], name: str) -> Callable[[J], J]:
    """Add the decorated function to ``checks``, under the clause with this id from its docstring."""

    def added(judge: J) -> J:
        checks[Clause.of(name, judge)] = judge
        return judge

    return added


def word_of(schedule: str) -> str:
    """Return a schedule's word in check ids, from its name."""
    word = re.sub(r"(?<=[a-z])(?=[A-Z0-9])|(?<=[A-Z]{2})(?=[A-Z][a-z])", "-", schedule)
    return re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-") or "schedule"
