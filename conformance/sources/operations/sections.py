"""The sections on operations in a report: their states, and what the oracles compared on each device."""

from __future__ import annotations

from collections.abc import Iterator

from gradconform.results import Report
from gradconform.run.source import SectionItem, SourceSection

from .by_oracles import by_oracles
from .standings import STANDINGS, described, standings

#: The most operations in the same state to name; above this, only the count is printed.
_NAMED_ALIKE = 12


def sections(report: Report) -> Iterator[SourceSection]:
    """Yield the operations by state, and the comparisons of the one-device oracles per device."""
    found = standings(report)
    items = []
    for standing in STANDINGS:
        alike_ones = [described(name, *of_name) for name, of_name in found.items() if of_name[0] == standing]
        if not alike_ones:
            continue
        shown = alike_ones[:_NAMED_ALIKE] if standing != "right" else []
        more = [f"and {len(alike_ones) - len(shown)} more"] if shown and len(alike_ones) > len(shown) else []
        text = ": ".join(filter(None, [standing, ", ".join([*shown, *more])]))
        items.append(SectionItem(text=text, number=len(alike_ones)))
    on_cpu = sum(standing == "partly on the CPU" for standing, _ in found.values())
    right = on_cpu + sum(standing == "right" for standing, _ in found.values())
    partly = f", {on_cpu} of them partly on the CPU" if on_cpu else ""
    yield SourceSection(heading=f"operations: {right} of {len(found)} right{partly}", items=tuple(items))
    compared = [
        SectionItem(text=f"{name} {one.text}")
        for name in dict.fromkeys(result.device for result in report)
        for one in by_oracles(result for result in report if result.device == name)
    ]
    yield SourceSection(heading="compared without a second device", items=tuple(compared))
