"""One subject of the self-test, a fault or a right variant: what the contract says of it."""

from __future__ import annotations

import importlib
import re
import time
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from gradconform.devices import Choice
from gradconform.oracle_cache import OracleCache
from gradconform.results import Report, Result
from gradconform.session import Session

if TYPE_CHECKING:
    from gradconform.reference.faults import Fault

#: Kinds of findings that are about a wrong value or a missing one, for which a cause can be computed.
VALUES = frozenset({"mismatch", "nonfinite", "missing"})

#: How many of the failed checks that a fault names are asked for a cause.
_ASKED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What the self-test asks: where, how much of the contract, and which catalogues (``module:attribute``).

    ``choice`` is what was found out about ``device`` and ``dtype``, so that no worker has to find it out again.
    """

    device: str = "cpu"
    dtype: str = "float32"
    profile: str = "standard"
    faults: str = "gradconform.reference.faults:FAULTS"
    variants: str = "gradconform.reference.variants:VARIANTS"
    choice: Choice | None = None

    def catalogue(self, role: Role) -> dict[str, Any]:
        """Return the faults or the variants by name."""
        module, _, attribute = (self.faults if role == "fault" else self.variants).partition(":")
        found: dict[str, Any] = getattr(importlib.import_module(module), attribute)
        return found


Role = Literal["fault", "variant"]
Subject = tuple[Role, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the contract said of one subject.

    ``failed`` and ``errors`` are check ids, the latter with their messages; ``named`` are the checks that a fault
    names and that ran; ``untried`` says that plain autograd itself can do none of them here, ``impossible`` what it
    cannot do, with what it raised. ``value`` says that it is a fault of values, ``cause`` which cause a message gave
    for it, ``said`` whether that is the one of the catalogue. ``seconds`` are those of the processor. ``broke`` tells
    of a worker that hung or crashed.
    """

    role: Role
    name: str
    topic: str = ""
    idea: str = ""
    failed: tuple[str, ...] = ()
    errors: tuple[tuple[str, str], ...] = ()
    named: tuple[str, ...] = ()
    untried: bool = False
    impossible: tuple[tuple[str, str], ...] = ()
    passed: int = 0
    value: bool = False
    said: bool = False
    cause: str | None = None
    seconds: float = 0.0
    broke: str | None = None

    @property
    def named_passed(self) -> tuple[str, ...]:
        """The checks one would name for the fault that did not fail."""
        return tuple(sorted(set(self.named) - set(self.failed)))

    @property
    def killed(self) -> bool:
        """Whether a fault failed a check that names it, or any check where none of these is in the profile.

        Another check than those may fail for another reason.
        """
        return not set(self.named).isdisjoint(self.failed) if self.named else bool(self.failed) and not self.untried

    @property
    def right(self) -> bool:
        """Whether it is as it should be: a fault is killed, a right variant is clean and was judged at all."""
        if self.broke is not None or self.errors:
            return False
        return self.killed or self.untried if self.role == "fault" else not self.failed and self.passed > 0


def judge(question: Question, subject: Subject, oracles: OracleCache) -> Outcome:
    """Run the contract against one subject."""
    started = time.process_time()
    role, name = subject
    made = question.catalogue(role)[name]
    report = _report(question, made.make() if role == "fault" else made(), oracles)
    failed = {result.check: result for result in report if result.status == "failed"}
    values: dict[str, Any] = {
        "failed": tuple(failed),
        "errors": tuple((result.check, result.message) for result in report if result.status == "error"),
        "passed": report.summary["passed"],
        "impossible": tuple((result.check, result.message) for result in report if _impossible(result)),
    }
    if role == "fault":
        asked = [result for result in report if any(fnmatchcase(result.check, pattern) for pattern in made.named)]
        named = [result.check for result in asked if result.status != "unsupported"]
        values |= {"topic": made.topic, "idea": made.idea, "named": tuple(named)}
        values |= {"untried": bool(asked) and all(map(_impossible, asked))}
        values |= _causes(question, made, [failed[check] for check in named if check in failed], oracles)
    return Outcome(role=role, name=name, seconds=time.process_time() - started, **values)


def _impossible(result: Result) -> bool:
    """Tell whether plain autograd itself could not do what a check asks."""
    return result.status == "unsupported" and result.kind == "environment"


def _report(question: Question, target: object, oracles: OracleCache, checks: list[str] | None = None) -> Report:
    return Session(
        target,
        device=question.device,
        dtype=question.dtype,
        choice=question.choice,
        profile=question.profile,
        checks=checks,
        diagnose=checks is not None,
        oracles=oracles,
    ).run()


def _causes(question: Question, fault: Fault, named: list[Result], oracles: OracleCache) -> dict[str, Any]:
    """Ask for the cause of a wrong value, and hold it against the catalogue's."""
    wrong = [result.check for result in named if any(finding["kind"] in VALUES for finding in result.findings)]
    if not wrong:
        return {}
    asked = _report(question, fault.make(), oracles, wrong[:_ASKED])
    causes = [str(finding["cause"]) for result in asked for finding in result.findings if finding["cause"]]
    told = "\n".join(result.message for result in asked)
    said = fault.cause is not None and re.search(fault.cause, told) is not None
    return {"value": True, "said": said, "cause": causes[0] if causes else None}
