"""The verdict on devices: what is right, what is wrong and whose it is, what was not tried, and what to mend first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from gradconform.results import Report, Result

from .lines import Line, count
from .to_mend import culprits


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """What is said at the end, one line per device, and whether anything ``wrong`` was found."""

    lines: tuple[Line, ...]
    wrong: bool


def device_verdict(report: Report, planned: Mapping[str, int]) -> DeviceVerdict:
    """Return the verdict on each device; ``planned`` are all of them, with how many checks were to run there."""
    by_device: dict[str, list[Result]] = {name: [] for name in planned}
    for result in report:
        by_device.setdefault(result.device, []).append(result)
    lines = [_line(name, results, planned.get(name, len(results)), report) for name, results in by_device.items()]
    return DeviceVerdict(tuple(lines), any(map(_accuses, report)))


def _accuses(result: Result) -> bool:
    """Tell whether a result says that something is wrong: of the device, or of what runs on it."""
    return result.status == "failed" or (result.status, result.kind) == ("error", "device")


def _line(name: str, results: list[Result], planned: int, report: Report) -> Line:
    counts = Counter(map(_standing, results))
    rest = [
        (counts["not done"], "not done there"),
        (counts["not judged"], "could not be judged"),
        (counts["left"] + planned - len(results), "not tried"),
    ]
    more = "".join(f"; {number} {what}" for number, what in rest if number)
    dtypes = ", ".join(dict.fromkeys(result.dtype for result in results))
    if counts["wrong"]:
        mend = [one for one in culprits(report) if any(result.device == name for result in one.results)]
        first = f"; mend {mend[0].name} first" if mend else ""
        told = f"{name} is WRONG in {count(counts['wrong'], 'check')} of {len(results)} in {dtypes}{first}{more}"
        return Line(told, "bad")
    if not results:
        return Line(f"{name}: no verdict: none of {planned} checks was run", "warning")
    if not counts["right"]:
        return Line(f"{name}: no verdict: nothing was judged in {dtypes}{more}", "warning")
    told = f"{name} is right in all {counts['right']} checks that it can do in {dtypes}{more}"
    return Line(told, "warning" if more else "good")


def _standing(result: Result) -> str:
    if _accuses(result):
        return "wrong"
    if result.status == "error":
        return "not judged"
    return {"passed": "right", "unsupported": "not done"}.get(result.status, "left")
