"""What a report says of the device: where it is wrong, what did not run on it, and what it took in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gradconform.report.causes import by_cause
from gradconform.report.lines import Line, count, heading, wrapped
from gradconform.results import Report, Result

#: So many areas of the contract are named with how many of their checks a device fault left without a verdict.
_AREAS = 12


def device_fault_lines(report: Report, width: int) -> list[Line]:
    """Return the section on checks in which the device is wrong, one paragraph per cause; nothing without any."""
    faults = [result for result in report.results if result.status == "error" and result.kind == "device"]
    if not faults:
        return []
    causes = by_cause(faults)
    checks = count(len({result.check for result in faults}), "check")
    lines = [heading(f"device faults: {checks} by {count(len(causes), 'cause')}", width, "bad")]
    spared = f"They are not charged to {report.target['name']}, of which these checks say nothing."
    lines += [*wrapped(spared, width), Line()]
    for number, cause in enumerate(causes, 1):
        found = f"[{number}] {count(len(cause.checks), 'check')}: {cause.text}"
        lines += wrapped(found, width, hanging=4, role="heading")
        lines += wrapped(f"in {_areas(cause.results)}; in {cause.results[0].check}", width, indent=4, hanging=2)
        for text in cause.results[0].message.splitlines()[1:]:
            lines += wrapped(text, width, indent=6, hanging=2)
        lines.append(Line())
    return lines


def _areas(results: Sequence[Result]) -> str:
    counts = Counter(result.check.partition(".")[0] for result in results)
    return ", ".join(f"{area} {number}" for area, number in counts.most_common(_AREAS))


def device_number_lines(report: Report, width: int) -> list[Line]:
    """Say what ran off the device, what memory it took beside plain autograd, and how well that repeats itself."""
    texts = [text(report.results) for text in (_off_device, _memory, _deferred, _spread)]
    return [line for text in texts if text for line in wrapped(text, width, role="faint")]


def _off_device(results: Sequence[Result]) -> str:
    shares = [result for result in results if result.off_device_share is not None]
    if not shares:
        return ""
    worst = max(shares, key=lambda result: result.off_device_share or 0.0)
    if not worst.off_device_share:
        return f"all operations of the {len(shares)} checks that were recorded ran on the device"
    number = sum(bool(result.off_device_share) for result in shares)
    return (
        f"{number} of the {len(shares)} recorded checks ran operations off the device, "
        f"at most {worst.off_device_share:.1%} of them ({worst.check})"
    )


def _memory(results: Sequence[Result]) -> str:
    return _largest(results, "plain_autograd", "plain autograd's")


def _deferred(results: Sequence[Result]) -> str:
    split = [r for r in results if r.memory is not None and r.memory["undeferred"] != r.memory["plain_autograd"]]
    return _largest(split, "undeferred", "what plain autograd takes where no weight gradient is deferred")


def _largest(results: Sequence[Result], beside: str, words: str) -> str:
    taken = [(result.check, result.memory) for result in results if result.memory is not None]
    ratios = {check: memory["peak"] / memory[beside] for check, memory in taken if memory[beside]}
    if not ratios:
        return ""
    worst = max(ratios, key=lambda check: ratios[check])
    return f"peak memory of the device is at most {ratios[worst]:.2f} times {words} ({worst})"


def _spread(results: Sequence[Result]) -> str:
    spreads = [result for result in results if result.oracle_spread]
    if not spreads:
        return ""
    worst = max(spreads, key=lambda result: result.oracle_spread or 0.0)
    return (
        f"plain autograd does not repeat itself bit by bit in {count(len(spreads), 'check')}: its runs are up to "
        f"{worst.oracle_spread:.1e} of the largest element apart ({worst.check}), by which bounds are wider there"
    )
