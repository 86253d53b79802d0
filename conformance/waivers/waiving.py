"""Applies waivers to results: one way for the library, the command, the plugin and worker processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradconform.results import Report, Result
from gradconform.waivers.waiver import Waiver


@dataclass(frozen=True, slots=True, kw_only=True)
class Waivers:
    """The entries of a waiver file, as one run applies them.

    ``elsewhere`` are the positions of entries that are for another adapter, torch, device or dtype than the run's.
    """

    file: str
    sha256: str
    entries: tuple[Waiver, ...]
    elsewhere: tuple[int, ...] = ()

    def within(self, *, adapter: str, torch: str, cells: Iterable[tuple[str, str]]) -> Waivers:
        """Return the waivers as a run applies them: of ``adapter``, with ``torch``, on devices and dtypes ``cells``."""
        places = [_anywhere(device, dtype) for device, dtype in cells]
        here = [
            waiver.when.holds(adapter=adapter, torch=torch)
            and any(replace(waiver, check="*").covers(place) for place in places)
            for waiver in self.entries
        ]
        return replace(self, elsewhere=tuple(position for position, holds in enumerate(here) if not holds))

    @property
    def here(self) -> list[Waiver]:
        """The entries that are for this run."""
        return [waiver for position, waiver in enumerate(self.entries) if position not in self.elsewhere]

    def settle(self, result: Result) -> Result:
        """Return what a result is under the waivers.

        A failure whose findings are all of a pinned kind is ``waived``, a pass ``unexpectedly_passed``. Any other
        failure of a check that has a waiver stays one, and its message says what was expected instead. Errors, and
        what could not be run, are no failures that can be expected.
        """
        if result.waiver is not None or result.status not in {"passed", "failed"}:
            return result
        covering = [waiver for waiver in self.here if waiver.covers(result)]
        if not covering:
            return result
        if result.status == "passed":
            return replace(result, status="unexpectedly_passed", waiver=covering[0].to_dict())
        for waiver in covering:
            if waiver.expects(result):
                return replace(result, status="waived", waiver=waiver.to_dict())
        expected = " or ".join(sorted({kind for waiver in covering for kind in waiver.verdict}))
        return replace(result, message=_with(result, f"waived is only {expected}, in {self.file}, and this is not"))

    def record(self) -> dict[str, Any]:
        """Return what a report says of the waivers, as JSON values."""
        return {
            "file": self.file,
            "sha256": self.sha256,
            "entries": [waiver.to_dict() for waiver in self.entries],
            "elsewhere": list(self.elsewhere),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Waivers:
        """Return the waivers that :meth:`record` gave."""
        entries = tuple(Waiver.from_dict(entry) for entry in record["entries"])
        return cls(file=record["file"], sha256=record["sha256"], entries=entries, elsewhere=tuple(record["elsewhere"]))


def unmatched(report: Report) -> list[int]:
    """Return the positions of the entries that are for this run, and met no result that was judged."""
    if report.waivers is None:
        return []
    waivers = Waivers.from_record(report.waivers)
    judged = [r for r in report.results if r.status in {"waived", "unexpectedly_passed", "failed"}]
    return [
        position
        for position, waiver in enumerate(waivers.entries)
        if position not in waivers.elsewhere
        and not any(result.waiver == waiver.to_dict() or _missed(waiver, result) for result in judged)
    ]


def _with(result: Result, note: str) -> str:
    """Return the message with a note before the lines on its findings, which are the last ones."""
    lines = result.message.splitlines()
    at = len(lines) - len(result.findings)
    return "\n".join([*lines[:at], note, *lines[at:]])


def _missed(waiver: Waiver, result: Result) -> bool:
    """Tell whether a check that the entry speaks of failed in another way than it expects."""
    return result.status == "failed" and waiver.covers(result)


def _anywhere(device: str, dtype: str) -> Result:
    """Return a result that stands for any check on a device and dtype."""
    return Result(check="*", level="MUST", device=device, dtype=dtype, status="not_run", requirement="")
