"""Results and the report of a run, in Python and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from gradconform.text.counts import count
from gradconform.text.escaping import for_terminal
from gradconform.text.findings import finding_line

from .coverage import Coverage, Lack, coverage_of, impossible_shares
from .exits import (
    EXIT_ADAPTER,
    EXIT_CONFORMS,
    EXIT_DOES_NOT,
    EXIT_ENVIRONMENT,
    EXIT_INCOMPLETE,
    EXIT_KIT,
    EXIT_USAGE,
)
from .version import CONTRACT_VERSION, KIT_VERSION

SCHEMA = "gradconform-report"
SCHEMA_VERSION = 1

Status = Literal["passed", "failed", "waived", "unexpectedly_passed", "unsupported", "not_run", "error"]
STATUSES: tuple[Status, ...] = (
    "passed", "failed", "waived", "unexpectedly_passed", "unsupported", "not_run", "error",
)  # fmt: skip

#: The statuses that say that every compared value was within its bound.
_WITHIN_BOUNDS: frozenset[Status] = frozenset({"passed", "unexpectedly_passed"})

#: The possible verdicts; :attr:`Report.verdict` describes each.
Verdict = Literal[
    "conforms", "conforms in part", "conforms with waivers", "conforms in part with waivers", "does not conform",
    "incomplete", "passed", "failed",
]  # fmt: skip

#: The sort of a named tensor; ``thing`` is anything else, whose name describes it.
Sort = Literal[
    "input gradient", ".grad of an input", "parameter gradient", "output gradient", "output", "argument", "parameter",
    "buffer", "requires_grad flag", "entry of what W returns", "micro-batch", "module", "thing",
]  # fmt: skip

#: The names in JSON of the fields that have another name in Python.
JSON_NAMES = {"error_ratio": "headroom"}

_PYTHON_NAMES = {name: field for field, name in JSON_NAMES.items()}

#: How a check ended its process; the system ends a process as ``killed`` if memory runs out.
EndKind = Literal["crash", "hang", "memory", "device_lost", "killed"]


def python_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values by the names that their fields have in Python."""
    return {_PYTHON_NAMES.get(name, name): value for name, value in values.items()}


class NonConformingError(AssertionError):
    """Raised by :meth:`Report.raise_if_failed`; its message lists every failure."""

    __module__ = "gradconform"  # its public name, which tracebacks show


class Place(NamedTuple):
    """The place of a result in a run: a check id, a device and a dtype."""

    check: str
    device: str
    dtype: str

    @property
    def name(self) -> str:
        """The place as pytest shows it: ``full.gradients.mlp[cpu-float32]``."""
        return f"{self.check}[{self.device}-{self.dtype}]"

    def matches(self, check: str, device: str = "*", dtype: str = "*") -> bool:
        """Return whether the globs match check, device and dtype."""
        return all(map(fnmatchcase, self, (check, device, dtype)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The verdict on one check, on one device and dtype.

    ``error_ratio`` (in JSON ``headroom``) is the largest error/bound ratio: 0 if everything was bit-equal to plain
    autograd, above 1 if a value was wrong, None if no value was compared. ``kind`` is the kind of the first finding, or
    of the error (``kit``, ``environment``, ``adapter``, ``device``). For an unsupported result there are four kinds:
    ``environment`` if plain autograd raised, :data:`~gradconform.coverage.WITHHELD` if a list excludes it,
    ``gradconform.coverage.NOTHING`` if an oracle has nothing to compare, and ``gradconform.coverage.MISCOPIED`` if
    its values are known only through copies that the device makes wrong.

    ``bit_equal`` says whether all values equal plain autograd's bit by bit. ``repeats_bit_equal`` says whether the
    repeats of a trial equal the first one. Both are None if nothing was compared. ``findings`` holds every difference
    with its numbers, ``programs`` the programs of the check. ``waiver`` is the entry of the waiver file that expects a
    failure of the check here, as JSON values. ``core`` says that no claim can withhold the check. ``unclaimed`` has the
    required capabilities that the target does not claim.

    ``exhausted`` is the error raised when memory ran out; it is for the process that ran the check, and not written.
    ``ended`` is how the check ended its process, whatever the cause; None if it did not. ``time_limit`` is the limit in
    seconds that a check that hung exceeded at first.

    With the correct split in torch's runtime: ``as_it_is`` is the status of the check on unchanged torch.
    ``of_runtime`` says whether every failure also occurs with plain autograd instead of I and W, so the runtime causes
    it.

    Off the CPU: ``off_device_share`` is the share of the implementation's operations that did not run on the device.
    ``memory`` is its peak there in bytes, plain autograd's, and plain autograd's with B instead of I and W
    (``undeferred``). It is for the trial with the largest excess over plain autograd. ``oracle_spread`` is the largest
    difference between two runs of plain autograd, relative to the largest element; None if they were bit-equal.
    ``imprecise`` is the error of each operation that is imprecise but not wrong, in eps of its dtype and scale; None if
    none is imprecise.

    For an oracle that needs no second device: ``oracle`` has the number of values ``compared``, the kernels or samples
    ``tried``, and those ``not_tried``, by reason; None for any other check.

    ``undone`` has the single mistakes that explain findings, as JSON values: ``mistake`` as a cause is written, and in
    ``left`` the places of the findings that remain when plain autograd makes this mistake too. ``verified_on`` is
    the id of a check that fails alike, if plain autograd ran with the mistake in that check instead.
    """

    check: str
    level: str
    device: str
    dtype: str
    status: Status
    requirement: str
    message: str = ""
    error_ratio: float | None = None
    duration_s: float = 0.0
    kind: str | None = None
    bit_equal: bool | None = None
    repeats_bit_equal: bool | None = None
    off_device_share: float | None = None
    memory: Mapping[str, int] | None = None
    oracle_spread: float | None = None
    imprecise: Mapping[str, float] | None = None
    oracle: Mapping[str, Any] | None = None
    waiver: Mapping[str, Any] | None = None
    findings: tuple[Mapping[str, Any], ...] = ()
    programs: tuple[str, ...] = ()
    core: bool = False
    unclaimed: tuple[str, ...] = ()
    ended: EndKind | None = None
    as_it_is: Status | None = None
    of_runtime: bool | None = None
    exhausted: str | None = None
    undone: tuple[Mapping[str, Any], ...] = ()
    time_limit: float | None = None

    def __post_init__(self) -> None:
        """Turn a passed result whose error is above its bound into an error of the kit, wherever it was made.

        A process that receives results, or reads them from a file, decides this again.
        """
        if self.error_ratio is None or self.error_ratio <= 1.0 or self.status not in _WITHIN_BOUNDS:
            return
        text = (
            f"error/bound of a passed check: expected at most 1, got {self.error_ratio:.3g}; the kit's code was "
            "changed or is wrong: run again without anything that patches gradconform, or report a defect of the kit"
        )
        values = {"status": "error", "kind": "kit", "message": text, "waiver": None}
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def place(self) -> Place:
        """The place in a run."""
        return Place(self.check, self.device, self.dtype)

    @property
    def preamble(self) -> list[str]:
        """The lines of the message before those of its findings; all lines if there are no findings."""
        lines = self.message.splitlines()  # counted, since an older kit wrote the same findings in other words
        return lines[: len(lines) - sum(len(finding_line(one).splitlines()) for one in self.findings)]

    def of_findings(self, findings: Sequence[Mapping[str, Any]]) -> Result:
        """Return the result as if it had only these findings."""
        message = "\n".join([*self.preamble, *map(finding_line, findings)])
        return replace(self, findings=tuple(findings), message=message)

    @property
    def decisive(self) -> bool:
        """Whether this result alone decides against conformance, ignoring SHOULD."""
        return self.status == "error" or (self.status == "failed" and self.level == "MUST")

    @property
    def spares_target(self) -> bool:
        """Whether the result is not the target's fault: an error of adapter, device, environment or kit."""
        return self.status == "error"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        values = {JSON_NAMES.get(name, name): value for name, value in asdict(self).items()}
        del values["exhausted"]
        values["findings"] = [dict(finding) for finding in self.findings]
        values |= {"programs": list(self.programs), "unclaimed": list(self.unclaimed)}
        values["memory"] = None if self.memory is None else dict(self.memory)
        if values.pop("imprecise"):  # an older kit's report has none
            values["imprecise"] = dict(self.imprecise or {})
        if values.pop("oracle"):  # as above
            values["oracle"] = dict(self.oracle or {})
        if values.pop("undone"):  # as above
            values["undone"] = [dict(one) for one in self.undone]
        if self.time_limit is None:  # as above
            del values["time_limit"]
        values["waiver"] = None if self.waiver is None else dict(self.waiver)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Return the result that :meth:`to_dict` wrote."""
        several = {name: tuple(values.get(name, ())) for name in ("findings", "programs", "unclaimed", "undone")}
        return cls(**{**python_names(values), **several})


def now() -> str:
    """Return the current time in the form that a report uses."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@dataclass(slots=True, kw_only=True)
class Report:
    """All results of one run, and the manifest of the planned checks.

    ``manifest`` is how many checks the contract has in this profile, on the selected devices and dtypes; ``planned`` is
    how many of them were selected. ``extra`` names what was judged instead of the contract, such as user-defined
    schedules; then the manifest counts their checks. ``shard`` says which part of a divided run this is, and
    ``waivers`` which failures were expected; both are JSON values, or None. ``devices`` holds the measurements of the
    devices before the run, their pre-flight, and what was skipped; None if the run is on the CPU alone. ``options`` has
    all options of the run, as JSON values. ``made`` is when the run began, in UTC, in ISO 8601; None in a report of an
    older kit.
    """

    profile: str
    target: Mapping[str, Any]
    environment: Mapping[str, Any]
    seed: int
    manifest: int
    planned: int
    strict: bool = False
    extra: tuple[str, ...] = ()
    results: list[Result] = field(default_factory=list)
    contract: str = CONTRACT_VERSION
    kit: str = KIT_VERSION
    shard: Mapping[str, Any] | None = None
    waivers: Mapping[str, Any] | None = None
    devices: Mapping[str, Any] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    made: str | None = field(default_factory=now)

    def __iter__(self) -> Iterator[Result]:
        """Yield the results."""
        return iter(self.results)

    @property
    def command(self) -> str:
        """The command that made it, if that is not ``gradconform run``; else empty."""
        return str(self.options.get("command", ""))

    @property
    def summary(self) -> dict[str, int]:
        """Counts: manifest, planned, ran, and one per status; ``not_run`` counts planned checks without a result."""
        counts = Counter(result.status for result in self.results)
        # A repeated result (a rerun, a restarted worker) does not count as another check.
        counts["not_run"] += self.planned - len({result.place for result in self.results})
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
    def crashes(self) -> int:
        """How many checks ended their process."""
        return sum(result.ended is not None for result in self.results)

    @property
    def failures(self) -> list[Result]:
        """The results that failed or could not be judged, without waived ones; MUST before SHOULD."""
        found = [result for result in self.results if result.status in {"failed", "error"}]
        return sorted(found, key=lambda result: (not result.decisive, result.check))

    @property
    def selected(self) -> int:
        """How many checks were selected; for a shard, those of all shards."""
        return self.planned if self.shard is None else int(self.shard["selected"])

    @property
    def complete(self) -> bool:
        """Whether every check of the manifest, or of the shard's part of it, has a result, and enough were judged.

        A run is incomplete if a device or an environment fails, or if :attr:`lacks` has a reason.
        """
        return self.whole and self.summary["ran"] > 0 and not self._spared and not self.lacks

    @property
    def whole(self) -> bool:
        """Whether every check of the manifest, or of the shard's part of it, has a result."""
        return self.summary["not_run"] == 0 and self.selected >= self.manifest

    @property
    def conforms(self) -> bool:
        """Whether the target meets the contract in this profile without waivers.

        It is never true for a selection of checks, a shard, or a run of extra checks.
        """
        return self.verdict == "conforms"

    @property
    def _decides_against(self) -> bool:
        against_strictly = {"failed", "unexpectedly_passed"}
        return any(
            (r.decisive and not r.spares_target) or (self.strict and r.status in against_strictly) for r in self.results
        )

    @property
    def coverage(self) -> Coverage | None:
        """How much of the contract was judged; None if the run is not a whole run of it."""
        return coverage_of(self.results) if self.whole and self.shard is None and not self.extra else None

    @property
    def lacks(self) -> tuple[Lack, ...]:
        """The reasons why too little was judged for a verdict, because of limits of the target or the device.

        For a part of the contract, and for extra checks, only the limits of plain autograd count.
        """
        if self.shard is not None:
            return ()
        judged = self.coverage
        return impossible_shares(self.results) if judged is None else judged.lacks

    @property
    def verdict(self) -> Verdict:
        """``conforms``, ``conforms in part``, either ``with waivers``, ``does not conform`` or ``incomplete``.

        ``in part`` means that the target does not claim, or the device cannot do, everything that the contract
        requires. ``with waivers`` means that the target would not conform without them. A run of extra checks, and a
        shard, have ``passed`` or ``failed``: they decide nothing about the whole contract.
        """
        part = bool(self.extra) or self.shard is not None
        if self._decides_against:
            return "failed" if part else "does not conform"
        if not self.complete:
            return "incomplete"
        if part:
            return "passed"
        judged = self.coverage
        if judged is not None and not judged.whole:
            return "conforms in part with waivers" if self.rests_on_waivers else "conforms in part"
        return "conforms with waivers" if self.rests_on_waivers else "conforms"

    @property
    def rests_on_waivers(self) -> bool:
        """Whether the target would not conform without its waivers."""
        return any(result.status == "waived" and (self.strict or result.level == "MUST") for result in self.results)

    @property
    def decided(self) -> dict[str, Any]:
        """The conclusions from the results, as JSON values: ``verdict``, ``conforms`` and ``extent``."""
        verdict, judged = self.verdict, self.coverage
        reported = None if judged is None else judged.to_dict()
        return {"verdict": verdict, "conforms": verdict == "conforms", "extent": reported}

    @property
    def scope(self) -> str:
        """What the checks of the manifest belong to, in words."""
        of_contract = f"contract {self.contract}, profile {self.profile}"
        if self.extra and self.with_contract:
            return f"checks of {of_contract}, and beside it"
        return f"extra checks beside contract {self.contract}" if self.extra else of_contract

    @property
    def with_contract(self) -> bool:
        """Whether the contract was run in addition to other checks."""
        return bool(self.options.get("with_contract"))

    @property
    def counted(self) -> str:
        """The checks of the manifest, in words that follow their number."""
        return self.scope if self.extra else f"checks of {self.scope}"

    @property
    def exit_code(self) -> int:
        """The exit code: 0, 1, 2 (unused waivers), 3 (kit), 4 (environment or device), 5 (incomplete), 7 (adapter)."""
        kinds = {result.kind for result in self.results if result.status == "error"}
        if "kit" in kinds:
            return EXIT_KIT
        if self._decides_against:
            return EXIT_DOES_NOT
        if "adapter" in kinds:
            return EXIT_ADAPTER
        if self._spared:
            return EXIT_ENVIRONMENT
        if not self.complete:
            return EXIT_INCOMPLETE
        return EXIT_USAGE if self.unused_waivers else EXIT_CONFORMS

    @property
    def unused_waivers(self) -> list[int]:
        """Positions of the waivers that matched no result in a whole run of profile ``full``: remove them."""
        whole = self.complete and self.profile == "full" and self.shard is None and not self.extra
        if self.waivers is None or not whole:
            return []
        entries = enumerate(self.waivers["entries"])
        return [n for n, entry in entries if n not in self.waivers["elsewhere"] and not self._met(entry)]

    def _met(self, entry: Mapping[str, Any]) -> bool:
        """Return whether a waiver matched a judged result, or a failure that it does not expect."""
        where = {name: glob for name, glob in entry["when"].items() if name in {"device", "dtype"}}
        return any(
            result.waiver == entry or (result.status == "failed" and result.place.matches(entry["check"], **where))
            for result in self.results
            if result.status in {"waived", "unexpectedly_passed", "failed"}
        )

    @property
    def _spared(self) -> bool:
        return any(result.spares_target for result in self.results)

    def raise_if_failed(self) -> None:
        """Raise :class:`NonConformingError` with every failure's message, or if a check is missing.

        Unselected checks raise nothing. A whole run raises if too many checks are unsupported for a verdict.
        """
        __tracebackhide__ = True
        decisive = [r for r in self.failures if r.decisive or self.strict]
        decisive += [r for r in self.results if self.strict and r.status == "unexpectedly_passed"]
        counts = self.summary
        if not decisive and (counts["not_run"] or not counts["ran"]):
            unsupported = next((f"; the first: {r.check}: {r.message}" for r in self.results if r.message), "")
            msg = f"{counts['ran']} of {self.planned} checks were judged on {self.target['name']}{unsupported}"
            raise NonConformingError(for_terminal(msg))
        if not decisive and self.coverage is not None and self.lacks:
            msg = f"too little was judged on {self.target['name']} for a verdict: {'; '.join(map(str, self.lacks))}"
            raise NonConformingError(for_terminal(msg))
        if decisive:
            lines = [f"{self.target['name']} does not conform, by {count(len(decisive), 'check')}:"]
            lines += [f"{result.check}: {result.message}" for result in decisive]
            raise NonConformingError(for_terminal("\n".join(lines)))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "kit": self.kit,
            "contract": self.contract,
            "profile": self.profile,
            "seed": self.seed,
            "strict": self.strict,
            "extra": list(self.extra),
            "shard": None if self.shard is None else dict(self.shard),
            "waivers": None if self.waivers is None else dict(self.waivers),
            "devices": None if self.devices is None else dict(self.devices),
            "options": dict(self.options),
            "made": self.made,
            **self.decided,
            "target": dict(self.target),
            "environment": dict(self.environment),
            "summary": self.summary,
            "results": [result.to_dict() for result in self.results],
        }

    def to_json(self) -> str:
        """Return the report as standard JSON text, without NaN."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False) + "\n"


def finite(value: float | None) -> float | None:
    """Return ``value`` as JSON can represent it."""
    if value is None or math.isnan(value):
        return None
    return max(min(value, 1.7976931348623157e308), -1.7976931348623157e308)
