"""The coverage of a run: how much of the contract it judged, and whether that is enough for a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

from .adapter import is_option

#: The kinds of backward pass that a target may support; each adds its own checks.
WAYS = ("full", "split")

#: The share of an area, and of all checks, that may be unjudged on one device and dtype.
AREA_SHARE, WHOLE_SHARE = 0.5, 0.25

#: The kind of an unsupported result that was skipped because a list of operations says so.
WITHHELD = "withheld"

#: The kind of an unsupported result that is known only through copies that the device makes wrong.
MISCOPIED = "miscopied"

#: The kind of an unsupported result of an oracle that has nothing to compare, such as rows: no capability is missing.
NOTHING = "nothing"

#: The kind of an unsupported result where the target raised :class:`~gradconform.adapter.UnsupportedError`.
REFUSED = "refused"

#: Claims in words that say more than their names.
_WORDS = {"global_state=False": "more than one stage at a time in a process (global_state=False)"}

_PASSED = {"passed", "unexpectedly_passed"}


class Judged(Protocol):
    """The fields of a result that the rule reads."""

    @property
    def check(self) -> str:
        """The id of the check."""

    @property
    def level(self) -> str:
        """MUST or SHOULD."""

    @property
    def device(self) -> str:
        """The device."""

    @property
    def dtype(self) -> str:
        """The dtype."""

    @property
    def status(self) -> str:
        """The status."""

    @property
    def kind(self) -> str | None:
        """The kind: who caused the status."""

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """The required capabilities that the target does not claim."""

    @property
    def core(self) -> bool:
        """Whether no claim can withhold it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """One reason why too little was judged on one device and dtype.

    ``core``: ``checks`` of the core did not pass. ``area``: no MUST of ``area`` passed. ``share``: ``count`` of the
    ``of`` checks of ``area`` are unsupported; an empty ``area`` means all checks.
    """

    kind: Literal["core", "area", "share"]
    place: str
    area: str = ""
    checks: tuple[str, ...] = ()
    count: int = 0
    of: int = 0

    def __str__(self) -> str:
        """Return the reason in words."""
        if self.kind == "core":
            return f"core checks did not pass on {self.place}: {', '.join(self.checks)}"
        if self.kind == "area":
            return f"no MUST of {self.area} passed on {self.place}"
        return (
            f"{self.count} of {self.of} checks{f' of {self.area}' if self.area else ''} are unsupported on {self.place}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How much of the contract was judged.

    ``ways`` are the kinds of backward that the target supports. ``options`` counts the checks of these ways for
    optional features, such as a weight context in torch's own form; ``asked`` counts the other checks of these ways.
    ``withheld`` counts those of them that are unsupported, by the missing claim; a check that needs two claims counts
    for both. ``refused`` counts those that the target refused without withholding a claim. ``impossible`` counts those
    that plain autograd cannot do there.
    """

    ways: tuple[str, ...]
    asked: int
    options: int = 0
    withheld: Mapping[str, int] = field(default_factory=dict)
    refused: int = 0
    impossible: int = 0
    lacks: tuple[Lack, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether the whole contract was judged."""
        return self.ways == WAYS and not (self.withheld or self.refused or self.impossible)

    @property
    def left_out(self) -> str:
        """The unjudged checks and the reason, in words that follow a number of checks; empty if all were judged."""
        missing = [way for way in WAYS if way not in self.ways]
        reported = [f"{' and '.join(missing)} backward not tested"] if missing else []
        if self.options:
            reported.append(f"{self.options} optional {'check' if self.options == 1 else 'checks'} skipped")
        if self.refused:
            reported.append(f"{self.refused} refused by UnsupportedError")
        if self.withheld:
            reported.append(f"not claimed: {', '.join(_WORDS.get(claim, claim) for claim in self.withheld)}")
        if self.impossible:
            reported.append(f"{self.impossible} that plain autograd cannot run here")
        return "".join(f"; {words}" for words in reported)

    def to_dict(self) -> dict[str, Any]:
        """Return the coverage as JSON values."""
        lacks = [{**asdict(lack), "checks": list(lack.checks)} for lack in self.lacks]
        return {**asdict(self), "ways": list(self.ways), "lacks": lacks}


def coverage_of(results: Sequence[Judged]) -> Coverage:
    """Return the coverage of a whole run of the contract."""
    missing = {claim for result in results for claim in result.unclaimed}
    of_ways = [result for result in results if not any(claim in WAYS for claim in result.unclaimed)]
    required = [result for result in of_ways if not any(map(is_option, result.unclaimed))]
    unsupported = [result for result in required if result.status == "unsupported"]
    claims = Counter(claim for result in unsupported for claim in result.unclaimed)
    impossible = sum(_impossible(result) for result in unsupported)
    return Coverage(
        ways=tuple(way for way in WAYS if way not in missing),
        asked=len(required),
        options=len(of_ways) - len(required),
        withheld=dict(claims.most_common()),
        refused=sum(not result.unclaimed for result in unsupported) - impossible,
        impossible=impossible,
        lacks=(*_of_core(required, results), *_of_areas(required), *_shares(required, unsupported)),
    )


def impossible_shares(results: Sequence[Judged]) -> tuple[Lack, ...]:
    """Return where plain autograd could do, or was allowed to do, too little, for runs outside the contract."""
    return tuple(_shares(results, [result for result in results if _impossible(result)]))


def _impossible(result: Judged) -> bool:
    return result.status == "unsupported" and result.kind in {"environment", WITHHELD, MISCOPIED}


def _of_core(required: Iterable[Judged], results: Iterable[Judged]) -> Iterator[Lack]:
    """Yield, per device and dtype, the core's checks that did not pass; all of them if the target supports no way."""
    core: dict[str, list[Judged]] = {_place(result): [] for result in results if result.core}
    for result in required:
        if result.core:
            core[_place(result)].append(result)
    for place, found in core.items():
        missing = tuple(result.check for result in found if result.status not in _PASSED)
        if missing or not found:
            yield Lack(kind="core", place=place, checks=missing or ("all of it",))


def _of_areas(required: Iterable[Judged]) -> Iterator[Lack]:
    passed: Counter[tuple[str, str]] = Counter()
    for result in required:
        if result.level == "MUST":
            passed[_place(result), _area(result)] += result.status in _PASSED
    yield from (Lack(kind="area", place=place, area=area) for (place, area), number in passed.items() if not number)


def _shares(results: Iterable[Judged], unsupported: Iterable[Judged]) -> Iterator[Lack]:
    """Yield the areas in which too large a share of ``results`` is among the ``unsupported``."""
    counts, lost = (
        Counter((_place(result), area) for result in some for area in ("", _area(result)))
        for some in (results, unsupported)
    )
    for (place, area), number in counts.items():
        if lost[place, area] > number * (AREA_SHARE if area else WHOLE_SHARE):
            yield Lack(kind="share", place=place, area=area, count=lost[place, area], of=number)


def _place(result: Judged) -> str:
    return f"{result.device} {result.dtype}"


def _area(result: Judged) -> str:
    return result.check.partition(".")[0]
