"""The verdict as a badge: one small picture in SVG that needs no network, no font and no script."""

from __future__ import annotations

import unicodedata
from xml.etree import ElementTree as ET

from gradconform.exits import UsageError
from gradconform.results import Report
from gradconform.sinks import printable

from .sentences import shard_name, tone, verdict

#: White on each of these has a contrast above 5 : 1; WCAG AA asks for 4.5.
_GREY = "#444444"
_COLOURS = {"good": "#1a7f37", "warning": "#8a5a00", "bad": "#b3261e"}

#: Hundredths of an em that letters of DejaVu Sans take, the widest of the usual sans-serifs. Where another is taken
#: the viewer stretches the text to the same length (``textLength``), so that nothing runs over an edge.
_WIDTHS = {
    letter: width
    for width, letters in (
        (28, "'ijl"), (30, "IJ ,."), (35, "/:;\\|f-"), (40, "()[]t!r"), (50, '"*_`sz?c'), (58, "LFkvxyPTYao"),
        (64, "eESbdghnpqu$0123456789{}"), (69, "KAVBRXZC"), (77, "UHNDGOQ&w"), (85, "#+<=>^~M"), (100, "%mW@"),
    )
    for letter in letters
}  # fmt: skip
_FONT, _HEIGHT, _MARGIN, _CORNER = 11, 20, 6, 3


class BadgeError(UsageError):
    """A report that no badge can be made of."""


def badge(report: Report, label: str) -> str:
    """Return the SVG: contract, profile, verdict, and how many of the checks that were asked passed; behind a label.

    Its tooltip is the whole verdict. Raises :class:`BadgeError` for a shard, which has none.
    """
    if report.shard is not None:
        part = shard_name(report)
        msg = f"{part} of a run has no verdict; merge all shards with 'gradconform merge', and name the merged report"
        raise BadgeError(msg)
    left, right = _shown(label), _shown(f"{report.scope}: {_said(report)}{_share(report)}")
    return _drawn(left, right, _COLOURS[tone(report)], _shown(verdict(report)))


def _said(report: Report) -> str:
    """Return the verdict in a few words, and a comma; nothing where it is that all passed."""
    if report.verdict == "passed":
        return ""
    if report.verdict != "incomplete":
        return f"{report.verdict}, "
    return f"{'error' if report.summary['error'] else 'incomplete'}, no verdict, "


def _share(report: Report) -> str:
    """Return how many passed of those that the verdict counts."""
    asked = report.manifest if report.extent is None else report.extent.asked
    return f"{report.summary['passed']} of {asked} passed"


def _shown(text: str) -> str:
    return printable(" ".join(text.split()))


def _width(text: str) -> int:
    """Return how long a text is drawn, in pixels."""
    return round(sum(map(_width_of, text)) * _FONT / 100)


def _width_of(letter: str) -> int:
    if unicodedata.combining(letter):
        return 0
    wide = 100 if unicodedata.east_asian_width(letter) in "WF" else 70
    return _WIDTHS.get(letter, wide)


def _drawn(left: str, right: str, colour: str, tooltip: str) -> str:
    starts = _width(left) + 2 * _MARGIN
    rest = _width(right) + 2 * _MARGIN
    size = {"width": str(starts + rest), "height": str(_HEIGHT)}
    whole = ET.Element("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, "role": "img"})
    whole.set("aria-label", f"{left}: {right}")
    ET.SubElement(whole, "title").text = tooltip
    ET.SubElement(whole, "rect", {**size, "rx": str(_CORNER), "fill": _GREY})
    # No id, as a gradient or a clip would need: several badges may stand in one page.
    ET.SubElement(whole, "path", {"fill": colour, "d": _right_part(starts, rest)})
    letters = {"fill": "#ffffff", "font-family": "DejaVu Sans,Verdana,sans-serif", "font-size": str(_FONT)}
    texts = ET.SubElement(whole, "g", letters)
    for text, x in ((left, _MARGIN), (right, starts + _MARGIN)):
        placed = {"x": str(x), "y": "14", "textLength": str(_width(text)), "lengthAdjust": "spacingAndGlyphs"}
        ET.SubElement(texts, "text", placed).text = text
    ET.indent(whole)
    return f"{ET.tostring(whole, encoding='unicode')}\n"


def _right_part(x: int, width: int) -> str:
    """Return the outline of the coloured part, whose right corners are round."""
    side, flat = width - _CORNER, _HEIGHT - 2 * _CORNER
    turns = f"a{_CORNER} {_CORNER} 0 0 1 {_CORNER} {_CORNER}v{flat}a{_CORNER} {_CORNER} 0 0 1 -{_CORNER} {_CORNER}"
    return f"M{x} 0h{side}{turns}h-{side}z"
