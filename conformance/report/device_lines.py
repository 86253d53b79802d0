"""What a report says of devices: lines of the pre-flight that do not hold, and what was found and left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gradconform.report.lines import Line, count, heading, wrapped
from gradconform.results import Report


def device_lines(report: Report, width: int) -> list[Line]:
    """Return the sections on the devices of a run; none where the CPU alone was named and nothing is amiss."""
    told = report.devices or {}
    probes = told.get("probes", ())
    return [*_faults(probes, width), *_tolerances(probes, width), *_skipped(told.get("skipped", ()), width)]


def _faults(probes: Any, width: int) -> list[Line]:
    broken = [probe for probe in probes if any(not line["held"] for line in probe["preflight"])]
    if not broken:
        return []
    faults = sum(not line["held"] for probe in broken for line in probe["preflight"])
    name = f"pre-flight of devices: {count(faults, 'fault')} of the device, not charged to the target"
    lines = [heading(name, width, "warning"), Line()]
    for probe in broken:
        lines += [*preflight_lines(probe, width), Line()]
    return lines


def preflight_lines(probe: Mapping[str, Any], width: int) -> list[Line]:
    """Return how many lines of a device's pre-flight hold, and each that does not."""
    held = sum(bool(line["held"]) for line in probe["preflight"])
    lines = [Line(f"{probe['device']}  {held} of {count(len(probe['preflight']), 'line')} hold")]
    for line in probe["preflight"]:
        if not line["held"]:
            lines += wrapped(f"- {line['requirement']}", width, indent=2, hanging=2, role="warning")
            lines += wrapped(line["message"], width, indent=4, role="plain")
    return lines


def _tolerances(probes: Any, width: int) -> list[Line]:
    """Say where a device is judged by numbers of its own object, in place of the kit's."""
    texts = [
        f"{probe['device']} is judged by the tolerance of its own object: {_named(probe['facts']['tolerance'])}"
        for probe in probes
        if probe["facts"].get("tolerance")
    ]
    lines = [line for text in texts for line in wrapped(text, width, hanging=2)]
    return [*lines, Line()] if lines else []


def _named(factors: Mapping[str, float]) -> str:
    return ", ".join(f"c = {value:g} in {dtype}" for dtype, value in factors.items())


def _skipped(skipped: Any, width: int) -> list[Line]:
    if not skipped:
        return []
    lines = [heading(f"found and left out: {len(skipped)}", width)]
    for one in skipped:
        place = " ".join(filter(None, (one["device"], one["dtype"])))
        lines += wrapped(f"{place}: {one['reason']}", width, indent=2, hanging=4)
    return [*lines, Line()]
