"""The verdict on devices: correct parts, defects and their owner, untested parts, and what to fix first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gradconform.contract.extra_ids import FAULTS, name_in_id
from gradconform.coverage import MISCOPIED, NOTHING, WITHHELD
from gradconform.results import Report, Result
from gradconform.run.in_short import RIGHT
from gradconform.sources.operations.by_oracles import by_oracles
from gradconform.text.counts import count

from .lines import Line, Role
from .probed_devices import Device, devices
from .to_fix import culprits


@dataclass(frozen=True, slots=True)
class DeviceVerdict:
    """The closing lines on the devices, and whether anything ``wrong`` was found."""

    lines: tuple[Line, ...]
    wrong: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """The verdict on one device as a line; ``right`` is None if nothing was judged."""

    line: Line
    right: bool | None


#: An oracle's reason for operations outside its scope: no coverage is missing.
_NO_CASE = "with nothing to compare"


def is_of_devices(report: Report) -> bool:
    """Return whether the report judges devices rather than an implementation, by its target and oracles."""
    return report.target["name"] == RIGHT and (report.with_contract or bool(report.options.get("oracle")))


def device_verdict(report: Report, planned: Mapping[str, int]) -> DeviceVerdict:
    """Return the verdict on each device; ``planned`` maps every device to its number of planned checks."""
    by_device = {**{name: [] for name in planned}, **_by_device(report)}
    lines = [
        _verdict(name, results, planned.get(name, len(results)), report).line for name, results in by_device.items()
    ]
    broken = any(probe.faults for probe in devices(report))
    if len(report.results) < sum(planned.values()):  # a stopped run may have no other information
        lines = [
            Line("; ".join([line.text, *_preflight(name, report)]), line.role)
            for name, line in zip(by_device, lines, strict=True)
        ]
    return DeviceVerdict(tuple(lines), broken or any(map(_accuses, report)))


def standing_of_devices(report: Report) -> list[Standing]:
    """Return each device's verdict with its evidence and the facts that do not affect it."""
    found = []
    results_of = _by_device(report)
    untried = [
        one.name
        for one in devices(report)
        if not one.problem and not any(_is_of(one, name, report) for name in results_of)
    ]
    for name, results in {**results_of, **{name: [] for name in untried}}.items():
        verdict = _verdict(name, results, len(results), report)
        text = "; ".join([verdict.line.text, *_besides(name, results, report)])
        found.append(Standing(Line(text, verdict.line.role), verdict.right))
    return found


def _by_device(report: Report) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in report:
        found.setdefault(result.device, []).append(result)
    return found


def _accuses(result: Result) -> bool:
    """Return whether a result shows a defect of the device, or of the code that runs on it."""
    return result.status == "failed" or (result.status, result.kind) == ("error", "device")


def _verdict(name: str, results: list[Result], planned: int, report: Report) -> Standing:
    counts = Counter(map(_standing, results))
    rest = [
        (counts["unsupported"], "unsupported"),
        (counts["withheld"], "withheld"),
        (counts["miscopied"], "not judged behind wrong copies"),
        (counts["nothing"], _NO_CASE),
        (counts["not judged"], "could not be judged"),
        (counts["left"] + planned - len(results), "not tried"),
    ]
    more = "".join(f"; {number} {what}" for number, what in rest if number)
    dtypes = ", ".join(dict.fromkeys(result.dtype for result in results))
    broken = sum(probe.faults for probe in devices(report) if _is_of(probe, name, report))
    if counts["wrong"] or broken:
        to_fix = [one for one in culprits(report) if any(result.device == name for result in one.results)]
        first = f"; fix {to_fix[0].name} first" if to_fix else ""
        lines = [f"{count(broken, 'line')} of its pre-flight"] if broken else []
        operations = [count(len(to_fix), "operation")] if to_fix else []
        checks = f"{count(counts['wrong'], 'check')} of {len(results)}"
        where = " and ".join([*lines, ": ".join([*operations, checks])])
        return Standing(Line(f"{name} is WRONG in {where} in {dtypes}{first}{more}", "bad"), right=False)
    if not results:
        none = f"0 of {planned} checks ran" if planned else "no check ran"
        return Standing(Line(f"{name}: no verdict: {none}", "warning"), right=None)
    if not counts["right"]:
        reported = f"{name}: no verdict: nothing was judged in {dtypes}{more}"
        return Standing(Line(reported, "warning"), right=None)
    right = "the 1 check" if counts["right"] == 1 else f"all {counts['right']} checks"
    reported = f"{name} is right in {right} that it supports in {dtypes}{more}"
    role: Role = "warning" if any(number for number, what in rest if what != _NO_CASE) else "good"
    return Standing(Line(reported, role), right=True)


def _standing(result: Result) -> str:
    if _accuses(result):
        return "wrong"
    if result.status == "error":
        return "not judged"
    if result.kind in {NOTHING, WITHHELD, MISCOPIED}:
        return str(result.kind)
    return {"passed": "right", "unsupported": "unsupported"}.get(result.status, "left")


def _besides(name: str, results: list[Result], report: Report) -> Iterator[str]:
    """Yield the other facts on a device: pre-flight, fault detection, repeats, CPU fallback, memory."""
    yield from _found_out(name, results, report)
    yield from (one.brief for one in by_oracles(results))
    yield from _imprecise(results)
    yield from _repeated(results)
    yield from _executed(results)


def _found_out(name: str, results: list[Result], report: Report) -> Iterator[str]:
    yield from _preflight(name, report)
    faults = [one for one in results if name_in_id(one.check, FAULTS) is not None and one.status != "unsupported"]
    if faults:
        yield f"{sum(one.status == 'passed' for one in faults)} of {len(faults)} known faults found"


def _preflight(name: str, report: Report) -> Iterator[str]:
    """Yield how many lines of a device's pre-flight hold; with its indices where these differ."""
    found = [probe for probe in devices(report) if _is_of(probe, name, report) and probe.lines]
    alike: dict[str, list[str]] = {}
    for probe in found:
        tolerated = f" ({probe.tolerated} tolerated)" if probe.tolerated else ""
        alike.setdefault(f"pre-flight {probe.held} of {probe.lines}{tolerated}", []).append(probe.name)
    for text, names in alike.items():
        yield text if len(alike) == 1 else f"{text} on {', '.join(names)}"


def _is_of(probe: Device, name: str, report: Report) -> bool:
    """Return whether a probe is of the device with that name, or of an index that represents it."""
    indices = (report.devices or {}).get("indices") or {}
    return probe.name == name or probe.name in indices.get(name, ())


def _imprecise(results: list[Result]) -> Iterator[str]:
    worst: dict[str, float] = {}
    for operation, eps in (pair for one in results for pair in (one.imprecise or {}).items()):
        worst[operation] = max(eps, worst.get(operation, 0.0))
    if worst:
        most = max(worst, key=lambda operation: worst[operation])
        yield f"{count(len(worst), 'operation')} imprecise by up to {worst[most]:.0f} eps ({most})"


def _repeated(results: list[Result]) -> Iterator[str]:
    """Yield in how many checks two runs from one seed were bit-equal."""
    twice = [one for one in results if one.error_ratio is not None and one.device.partition(":")[0] != "cpu"]
    if not twice:  # the CPU runs plain autograd twice only if a check requires repeats
        twice = [one for one in results if one.repeats_bit_equal is not None]
    spreads = [one.oracle_spread for one in twice if one.oracle_spread]
    other = sum(one.repeats_bit_equal is False and not one.oracle_spread for one in twice)
    if not twice:
        return
    if not spreads and not other:
        yield f"two runs with one seed are bit-equal in all {count(len(twice), 'check')} that ran twice"
        return
    far = f", by up to {max(spreads):.2g} of the largest element" if spreads else ""
    yield f"two runs with one seed differ in {len(spreads) + other} of {len(twice)} checks{far}"


def _executed(results: list[Result]) -> Iterator[str]:
    """Yield the operations of the CPU fallback, and the memory that the device used."""
    left = [one.off_device_share for one in results if one.off_device_share]
    if left:
        yield f"{count(len(left), 'check')} used the CPU fallback, for up to {max(left):.0%} of their operations"
    elif any(one.off_device_share is not None for one in results):
        yield "no CPU fallback"
    ratios = {one.check: one.memory["peak"] / one.memory["plain_autograd"] for one in results if one.memory}
    if ratios:
        most = max(ratios, key=lambda check: ratios[check])
        yield f"peak memory at most {ratios[most]:.2f} times plain autograd's ({most})"
