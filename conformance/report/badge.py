"""Draw the verdict as a badge: a small SVG picture that needs no network, font or script."""

from __future__ import annotations

import unicodedata
from xml.etree import ElementTree as ET

from gradconform.exits import UsageError
from gradconform.results import Report
from gradconform.text.escaping import printable

from .sentences import shard_name, tone, verdict

#: White on each of these colours has a contrast above 5 : 1; WCAG AA requires 4.5.
_GREY = "#444444"
_COLOURS = {"good": "#1a7f37", "warning": "#8a5a00", "bad": "#b3261e"}

#: Letter widths of DejaVu Sans in hundredths of an em; it is the widest of the usual sans-serifs. With another font,
#: the viewer stretches the text to this length (``textLength``), so no text overflows.
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
    """The report cannot have a badge."""


def badge(report: Report, label: str) -> str:
    """Return the SVG: a label, then contract, profile, verdict and the share of required checks that passed.

    Its tooltip is the whole verdict. Raises :class:`BadgeError` for a shard, which has none.
    """
    if report.shard is not None:
        part = shard_name(report)
        msg = f"{part} of a run has no verdict; merge all shards with 'gradconform merge', and name the merged report"
        raise BadgeError(msg)
    left, right = _shown(label), _shown(f"{report.scope}: {_described(report)}{_share(report)}")
    return _drawn(left, right, _COLOURS[tone(report)], _shown(verdict(report)))


def _described(report: Report) -> str:
    """Return the verdict in a few words and a comma; empty if all checks passed."""
    if report.verdict == "passed":
        return ""
    if report.verdict != "incomplete":
        return f"{report.verdict}, "
    return f"{'error' if report.summary['error'] else 'incomplete'}, no verdict, "


def _share(report: Report) -> str:
    """Return how many of the counted checks passed."""
    required = report.manifest if report.coverage is None else report.coverage.asked
    return f"{report.summary['passed']} of {required} passed"


def _shown(text: str) -> str:
    return printable(" ".join(text.split()))


def _width(text: str) -> int:
    """Return the width of the text in pixels."""
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
    # Use no id, which a gradient or a clip would need: one page may contain several badges.
    ET.SubElement(whole, "path", {"fill": colour, "d": _right_part(starts, rest)})
    letters = {"fill": "#ffffff", "font-family": "DejaVu Sans,Verdana,sans-serif", "font-size": str(_FONT)}
    texts = ET.SubElement(whole, "g", letters)
    for text, x in ((left, _MARGIN), (right, starts + _MARGIN)):
        placed = {"x": str(x), "y": "14", "textLength": str(_width(text)), "lengthAdjust": "spacingAndGlyphs"}
        ET.SubElement(texts, "text", placed).text = text
    ET.indent(whole)
    return f"{ET.tostring(whole, encoding='unicode')}\n"


def _right_part(x: int, width: int) -> str:
    """Return the outline of the coloured part, which has round right corners."""
    side, flat = width - _CORNER, _HEIGHT - 2 * _CORNER
    turns = f"a{_CORNER} {_CORNER} 0 0 1 {_CORNER} {_CORNER}v{flat}a{_CORNER} {_CORNER} 0 0 1 -{_CORNER} {_CORNER}"
    return f"M{x} 0h{side}{turns}h-{side}z"
