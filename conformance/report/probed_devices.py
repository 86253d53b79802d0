"""Facts found out about devices before a run, and the devices and dtypes that were skipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradconform.results import Report


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The probe results of a device: the reason why it cannot be used, or the lines of its pre-flight.

    ``broken`` are the lines that do not hold, as requirement and message, and ``tolerated`` is the number of those that
    make no value wrong. ``dtypes`` are the unusable dtypes with reasons.
    """

    name: str
    problem: str | None
    lines: int
    broken: tuple[tuple[str, str], ...]
    tolerated: int
    dtypes: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, probe: Mapping[str, Any], name: str | None = None) -> Device:
        """Return the facts from a probe's JSON values; the device has the name given there, or ``name``."""
        broken = [line for line in probe["preflight"] if not line["held"]]
        return cls(
            name=name or probe["device"],
            problem=probe["reason"],
            lines=len(probe["preflight"]),
            broken=tuple((line["requirement"], line["message"]) for line in broken),
            tolerated=sum(bool(line.get("tolerated")) for line in broken),
            dtypes=tuple((dtype, problem) for dtype, problem in probe["dtypes"].items() if problem),
        )

    @property
    def faults(self) -> int:
        """Return how many lines show a fault that can make values wrong."""
        return len(self.broken) - self.tolerated

    @property
    def held(self) -> int:
        """Return how many lines hold."""
        return self.lines - len(self.broken)


def devices(report: Report) -> list[Device]:
    """Return the devices of a run; none if only the CPU was named."""
    return [Device.of(probe) for probe in (report.devices or {}).get("probes", ())]


def left_out(report: Report) -> list[str]:
    """Return the devices and dtypes that were found but not used, with reasons."""
    skipped = (report.devices or {}).get("skipped", ())
    return [f"{' '.join(filter(None, (one['device'], one['dtype'])))}: {one['reason']}" for one in skipped]
