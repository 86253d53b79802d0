"""Offers to other projects: the list for a terminal, and the report that accompanies a test."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from gradconform.bench.upstream import Offer
from gradconform.text.counts import count
from gradconform.torch_releases.tested import TESTED
from gradconform.version import KIT_VERSION

from .lines import Line, wrapped

_SHORTEST = 20

#: An explanation of these actions, for readers of a report who do not know torch's schedules.
_ACTIONS = (
    "F, B, I and W are the actions of torch's schedules: F is a forward and B a full backward.\n"
    "A split backward has two parts: I computes the input gradients, and W the parameter gradients."
)


def offer_listing(offers: Sequence[Offer], width: int) -> list[Line]:
    """Return a line for each offer: its name and its title, cut to the width."""
    return [Line(f"{one.name}  {_within(one.title, width - len(one.name) - 2)}") for one in offers]


def _within(text: str, width: int) -> str:
    return textwrap.shorten(text, max(width, _SHORTEST), placeholder=" …")


def offer_figures(offers: Sequence[Offer], width: int) -> list[Line]:
    """Return the number of defects by project."""
    projects = dict.fromkeys(one.project for one in offers)
    each = ", ".join(f"{project} {sum(one.project == project for one in offers)}" for project in projects)
    return wrapped(f"{count(len(offers), 'confirmed defect')}, each with a report and a test: {each}", width)


def offer_report(offer: Offer) -> str:
    """Return the text of the report in Markdown."""
    return "\n".join(_report_lines(offer)) + "\n"


def _report_lines(offer: Offer) -> Iterator[str]:
    yield f"# {offer.title}"
    yield ""
    if offer.told:
        yield offer.told.strip()
        yield ""
    if re.search(r"\b[FBIW]\d?\b", offer.title + offer.told):
        yield _ACTIONS
        yield ""
    yield f"- Project: <https://github.com/{offer.repository}>"
    yield f"- Confirmed on: {offer.project} {offer.version}"
    if offer.releases:
        yield f"- Releases that have it: {offer.releases} (tested: {TESTED[0]} to {TESTED[-1]})"
    yield f"- Likely place: {offer.place}"
    yield f"- How to fix it: {offer.mend}"
    if offer.links:
        yield f"- Public reports of this or of related defects: {', '.join(f'<{link}>' for link in offer.links)}"
    yield f"- Found by: gradconform {KIT_VERSION}; the test below does not need it"
    yield ""
    yield "## A test"
    yield ""
    yield f"On {offer.project} {offer.version} it fails with `{offer.fails}`; it passes once the defect is fixed."
    where = f" Put it into `{offer.suite}`." if offer.suite else ""
    yield f"Run it by `{run_line(offer)}`.{where}"
    yield ""
    yield "```python"
    yield offer.test.rstrip()
    yield "```"


def run_line(offer: Offer) -> str:
    """Return the command that runs an offer's test, for use in the same folder."""
    return f"python {'' if offer.run == 'python' else '-m pytest '}test_{offer.stem}.py"
