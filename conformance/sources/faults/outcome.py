"""The outcome of judging a fault or a right variant: the one place that decides whether a fault was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from gradconform.files.records import tupled
from gradconform.reference.faults import Fault
from gradconform.results import Result
from gradconform.torch_releases.edges import EDGE

Role = Literal["fault", "variant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the checks that ran say of one subject: a fault, or a right variant.

    ``failed`` and ``errors`` are ids of checks that ran, the latter with messages. ``named`` are the checks of a fault
    that ran. ``untried`` means that plain autograd or this torch supports none of them, and ``impossible`` has the
    unsupported ones with their errors. ``value``: it is a fault of values. ``cause`` is the cause in a message, and
    ``said`` is whether the catalogue names it. ``seconds`` is processor time. ``broke`` describes a worker that hung or
    crashed. ``ran`` is the number of checks that ran, and ``decided`` whether a whole run of them decided against the
    subject; None without a whole run.
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
    ran: int = 0
    decided: bool | None = None

    @property
    def named_passed(self) -> tuple[str, ...]:
        """The checks that name the fault and did not fail."""
        return tuple(sorted(set(self.named) - set(self.failed)))

    @property
    def killed(self) -> bool:
        """Whether a fault failed a check that names it, or any check if none of these is in the profile.

        Other checks may fail for other reasons. In a whole run, what counts is what a user sees: the verdict.
        """
        if self.decided:
            return True
        return not set(self.named).isdisjoint(self.failed) if self.named else bool(self.failed) and not self.untried

    @property
    def right(self) -> bool:
        """Whether the outcome is as expected: a fault is killed, a right variant was judged without a failure."""
        if self.broke is not None or self.errors:
            return False
        return self.killed or self.untried if self.role == "fault" else not self.failed and self.passed > 0

    @classmethod
    def of(
        cls, role: Role, name: str, results: Sequence[Result], fault: Fault | None = None, *, whole: bool = False
    ) -> Outcome:
        """Return the outcome of the checks that ran on a subject; ``whole`` means that they are a run in its order."""
        failed = [result for result in results if result.status == "failed"]
        found = cls(
            role=role,
            name=name,
            ran=len(results),
            failed=tuple(result.check for result in failed),
            errors=tuple((result.check, result.message) for result in results if result.status == "error"),
            passed=sum(result.status == "passed" for result in results),
            impossible=tuple((result.check, result.message) for result in results if _impossible(result)),
            decided=any(result.level == "MUST" for result in failed) if whole and fault else None,
        )
        if fault is None:
            return found
        matching = [result for result in results if fault.names(result.check)]
        named = tuple(result.check for result in matching if result.status != "unsupported")
        untried = bool(matching) and all(_impossible(one) or _of_other_torch(one) for one in matching)
        return replace(found, topic=fault.topic, idea=fault.idea, named=named, untried=untried)

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outcome:
        """Return the outcome that :meth:`to_dict` wrote."""
        return cls(**tupled(values))


def _impossible(result: Result) -> bool:
    """Return whether plain autograd does not support a check's requirement."""
    return result.status == "unsupported" and result.kind == "environment"


def _of_other_torch(result: Result) -> bool:
    """Return whether a check requires a feature that this torch lacks, so that no target claims it."""
    return "edge_roots" in result.unclaimed and not EDGE.there()
