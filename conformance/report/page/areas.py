"""The matrix of areas by device and dtype: how much of each was judged, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradconform.results import STATUSES, Result


def area_of(check: str) -> str:
    """Return the first part of a check's id."""
    return check.partition(".")[0]


def place_of(result: Result) -> str:
    """Return where a check was judged, as text: device and dtype."""
    return f"{result.device} {result.dtype}"


@dataclass(frozen=True, slots=True)
class Tally:
    """The results of one area in one place."""

    area: str
    place: str
    counts: Counter[str]
    decided: bool

    @property
    def told(self) -> str:
        """All counts but that of what passed: ``2 failed, 1 unsupported``; empty where all passed."""
        names = (status for status in STATUSES if status != "passed" and self.counts[status])
        return ", ".join(f"{self.counts[status]} {status.replace('_', ' ')}" for status in names)

    @property
    def passed(self) -> str:
        """How many of them passed: ``12 of 14``."""
        return f"{self.counts['passed']} of {self.counts.total()}"

    @property
    def tone(self) -> str:
        """What colours it: ``bad`` where something decides against the target, else ``warning``, ``good`` or ``none``.

        What is unsupported is neither good nor bad.
        """
        if self.decided:
            return "bad"
        if any(self.counts[status] for status in ("failed", "error", "waived", "unexpectedly_passed", "not_run")):
            return "warning"
        return "good" if self.counts["passed"] else "none"


@dataclass(frozen=True, slots=True)
class Areas:
    """The whole matrix; ``rows`` has an area and one tally per place, None where nothing of it has a result there."""

    places: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Tally | None, ...]], ...]


def areas_by_place(results: Sequence[Result]) -> Areas:
    """Return the matrix of ``results``, areas in the order of the alphabet and places in that of the run."""
    grouped: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        grouped.setdefault((area_of(result.check), place_of(result)), []).append(result)
    places = tuple(dict.fromkeys(place for _, place in grouped))
    tallies = {key: tally(*key, group) for key, group in grouped.items()}
    areas = sorted({area for area, _ in grouped})
    return Areas(places, tuple((area, tuple(tallies.get((area, place)) for place in places)) for area in areas))


def tally(area: str, place: str, results: Iterable[Result]) -> Tally:
    """Return the counts of some results."""
    found = list(results)
    return Tally(area, place, Counter(result.status for result in found), any(result.decisive for result in found))
