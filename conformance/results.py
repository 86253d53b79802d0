"""Results and the report: what a run says, in Python and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from gradconform.version import CONTRACT_VERSION, KIT_VERSION

SCHEMA = "gradconform-report"
SCHEMA_VERSION = 1

Status = Literal["passed", "failed", "waived", "unexpectedly_passed", "unsupported", "not_run", "error"]
STATUSES: tuple[Status, ...] = (
    "passed", "failed", "waived", "unexpectedly_passed", "unsupported", "not_run", "error",
)  # fmt: skip

#: Exit codes of the command.
EXIT_CONFORMS, EXIT_DOES_NOT, EXIT_USAGE, EXIT_KIT, EXIT_ENVIRONMENT, EXIT_INCOMPLETE = range(6)


class NonConformingError(AssertionError):
    """Raised by :meth:`Report.raise_if_failed`; its message lists every failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The verdict on one check, on one device and dtype.

    ``headroom`` is the largest ratio of error to bound that was met (0 where everything was bit-equal to plain
    autograd, above 1 where a value was wrong), None where no value was compared. ``kind`` is the kind of the first
    finding, or of the error (``kit``, ``environment``, ``adapter``). ``bit_equal`` says whether all values were those
    of plain autograd bit by bit, ``repeats_bit_equal`` whether the repeats of a trial were those of the first; None
    where nothing was compared. ``findings`` holds every difference with its numbers.
    """

    check: str
    level: str
    device: str
    dtype: str
    status: Status
    requirement: str
    message: str = ""
    headroom: float | None = None
    duration_s: float = 0.0
    kind: str | None = None
    bit_equal: bool | None = None
    repeats_bit_equal: bool | None = None
    findings: tuple[Mapping[str, Any], ...] = ()

    @property
    def decisive(self) -> bool:
        """Whether this result alone decides against conformance, SHOULD left aside."""
        return self.status == "error" or (self.status == "failed" and self.level == "MUST")

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        values = asdict(self)
        values["findings"] = [dict(finding) for finding in self.findings]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Return the result that :meth:`to_dict` wrote."""
        return cls(**{**values, "findings": tuple(values.get("findings", ()))})


@dataclass(slots=True, kw_only=True)
class Report:
    """All results of one run, against the manifest of what was planned.

    ``manifest`` is how many checks the contract has in this profile, on the devices and dtypes asked for; ``planned``
    how many of them were selected. ``schedules`` names the schedules of somebody's own that were judged in place of the
    contract; then the manifest counts these.
    """

    profile: str
    target: Mapping[str, Any]
    environment: Mapping[str, Any]
    seed: int
    manifest: int
    planned: int
    strict: bool = False
    schedules: tuple[str, ...] = ()
    results: list[Result] = field(default_factory=list)
    contract: str = CONTRACT_VERSION

    def __iter__(self) -> Iterator[Result]:
        """Iterate over the results."""
        return iter(self.results)

    @property
    def summary(self) -> dict[str, int]:
        """Counts: manifest, planned, ran, and one per status; ``not_run`` counts what was planned and has no result."""
        counts = Counter(result.status for result in self.results)
        # What is reported twice (a rerun, a worker that came back) stands for no other check.
        counts["not_run"] += self.planned - len(
            {(result.check, result.device, result.dtype) for result in self.results}
        )
        ran = sum(counts[status] for status in STATUSES if status not in {"unsupported", "not_run", "error"})
        failed_should = sum(result.status == "failed" and result.level == "SHOULD" for result in self.results)
        return {
            "manifest": self.manifest,
            "planned": self.planned,
            "ran": ran,
            **{status: counts[status] for status in STATUSES},
            "failed_should": failed_should,
        }

    @property
    def failures(self) -> list[Result]:
        """The results that failed or could not be judged, MUST before SHOULD."""
        found = [result for result in self.results if result.status in {"failed", "error"}]
        return sorted(found, key=lambda result: (not result.decisive, result.check))

    @property
    def complete(self) -> bool:
        """Whether every check of the manifest has a result, and at least one of them was judged."""
        counts = self.summary
        return counts["not_run"] == 0 and self.planned >= self.manifest and counts["ran"] > 0

    @property
    def conforms(self) -> bool:
        """Whether the target meets the contract in this profile. A selection of checks, or of schedules, never does."""
        return self.complete and not self._decides_against and not self.schedules

    @property
    def _decides_against(self) -> bool:
        return any(r.decisive or (self.strict and r.status == "failed") for r in self.results)

    @property
    def verdict(self) -> str:
        """``conforms``, ``does not conform`` or ``incomplete``; ``passed`` or ``failed`` of schedules of one's own."""
        if self._decides_against:
            return "failed" if self.schedules else "does not conform"
        if not self.complete:
            return "incomplete"
        return "passed" if self.schedules else "conforms"

    @property
    def scope(self) -> str:
        """What the checks of the manifest belong to, in words."""
        if self.schedules:
            return f"schedules of your own, no part of contract {self.contract}"
        return f"contract {self.contract}, profile {self.profile}"

    @property
    def exit_code(self) -> int:
        """The command's exit code: 0, 1, 3 (an error of the kit), 4 (of the environment) or 5 (incomplete)."""
        kinds = {result.kind for result in self.results if result.status == "error"}
        if "kit" in kinds:
            return EXIT_KIT
        if self._decides_against:
            return EXIT_ENVIRONMENT if kinds == {"environment"} and not self._failed else EXIT_DOES_NOT
        return EXIT_CONFORMS if self.complete else EXIT_INCOMPLETE

    @property
    def _failed(self) -> bool:
        return any(result.status == "failed" for result in self.results)

    def raise_if_failed(self) -> None:
        """Raise :class:`NonConformingError` with every failure's message, or where a check is missing.

        Checks that are unsupported, and checks that were not selected, raise nothing.
        """
        __tracebackhide__ = True
        decisive = [r for r in self.failures if r.decisive or self.strict]
        counts = self.summary
        if not decisive and (counts["not_run"] or not counts["ran"]):
            unsupported = next((f"; the first: {r.check}: {r.message}" for r in self.results if r.message), "")
            msg = f"{counts['ran']} of {self.planned} checks were judged on {self.target['name']}{unsupported}"
            raise NonConformingError(msg)
        if decisive:
            lines = [f"{len(decisive)} checks decide against {self.target['name']}:"]
            raise NonConformingError("\n".join([*lines, *(f"{result.check}: {result.message}" for result in decisive)]))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "kit": KIT_VERSION,
            "contract": self.contract,
            "profile": self.profile,
            "seed": self.seed,
            "strict": self.strict,
            "schedules": list(self.schedules),
            "verdict": self.verdict,
            "conforms": self.conforms,
            "target": dict(self.target),
            "environment": dict(self.environment),
            "summary": self.summary,
            "results": [result.to_dict() for result in self.results],
        }

    def to_json(self) -> str:
        """Return the report as JSON text, standard JSON without NaN."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"


def finite(value: float | None) -> float | None:
    """Return ``value`` as JSON can hold it."""
    if value is None or math.isnan(value):
        return None
    return max(min(value, 1.7976931348623157e308), -1.7976931348623157e308)
