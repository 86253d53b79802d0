"""A report as JUnit XML, which CI systems show: one suite per device and dtype, one test per check."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from xml.etree import ElementTree as ET

from gradconform.results import Report, Result
from gradconform.text.escaping import printable

from .sentences import title, verdict

#: The element inside a test, by the check's status; a passed check has none.
_ELEMENTS = {"failed": "failure", "error": "error", "unsupported": "skipped", "waived": "skipped", "not_run": "skipped"}


def junit(report: Report) -> str:
    """Return the XML; a failed SHOULD or a needless waiver counts for its test as it counts for the verdict."""
    cells = [list(group) for _, group in groupby(report, key=lambda result: (result.device, result.dtype))]
    reported = [tuple(_described(report, result) for result in results) for results in cells]
    whole = ET.Element(
        "testsuites", {"name": printable(title(report)), **_counts([one for each in reported for one in each])}
    )
    for results, elements in zip(cells, reported, strict=True):
        name = f"{results[0].device} {results[0].dtype}"
        suite = ET.SubElement(whole, "testsuite", {"name": printable(name), **_counts(elements)})
        suite.set("time", f"{sum(result.duration_s for result in results):.3f}")
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="verdict", value=printable(verdict(report)))
        for result, element in zip(results, elements, strict=True):
            _test(suite, result, element)
    ET.indent(whole)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(whole, encoding="unicode")}\n'


def _described(report: Report, result: Result) -> str | None:
    """Return the element with a check's result; None if the verdict counts it as passed."""
    if result.status == "failed" and not (result.decisive or report.strict):
        return "skipped"
    if result.status == "unexpectedly_passed":
        return "failure" if report.strict else None
    return _ELEMENTS.get(result.status)


def _counts(elements: Sequence[str | None]) -> dict[str, str]:
    named = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    return {"tests": str(len(elements)), **{name: str(elements.count(one)) for name, one in named.items()}}


def _test(suite: ET.Element, result: Result, element: str | None) -> None:
    area, _, name = result.place.name.partition(".")
    where = {"classname": f"gradconform.{printable(area)}", "name": printable(name)}
    test = ET.SubElement(suite, "testcase", where, time=f"{result.duration_s:.3f}")
    if element is None:
        return
    message = printable(result.message) or result.status
    first = message.partition("\n")[0]
    inner = ET.SubElement(test, element, message=f"{result.status}: {first}")
    if element != "skipped":
        inner.set("type", str(result.kind or result.status))
        inner.text = f"{printable(result.requirement)}\n{message}"
