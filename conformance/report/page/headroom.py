"""How near to plain autograd the values of a run are, as a plot per device and dtype."""

from __future__ import annotations

import io
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from markupsafe import Markup

from gradconform.results import Result

from .rows import cell_of

#: What brings the library that draws.
INSTALL = "pip install 'gradconform[report]'"

#: Upper ends of the bars after the first one, which is of the checks that are bit-equal to plain autograd.
_ENDS = (0.01, 0.1, 1.0, 10.0, 1e3, 1e6)
_NAMES = ("0", "to 0.01", "to 0.1", "to 1", "to 10", "to 1e3", "to 1e6", "above")

#: A colour that matplotlib writes and nothing else does: the page's own text colour takes its place.
_INK = "#0a0b0c"
_COLOURS = {"passed": "#2a7fd4", "failed": "#d0453a", "otherwise": "#9a8cd0"}


@dataclass(frozen=True, slots=True)
class Headroom:
    """The plot of one device and dtype, with its numbers in words; ``svg`` is None where nothing can draw it."""

    cell: str
    told: str
    svg: Markup | None


def headroom_by_cell(results: Sequence[Result]) -> list[Headroom]:
    """Return one plot per device and dtype of the run in which some value was compared."""
    grouped: dict[str, list[Result]] = {}
    for result in results:
        if result.headroom is not None:
            grouped.setdefault(cell_of(result), []).append(result)
    drawn = find_spec("matplotlib") is not None
    return [
        Headroom(cell, _told(found), _plot(found, f"headroom-{number}") if drawn else None)
        for number, (cell, found) in enumerate(grouped.items())
    ]


def _told(results: Sequence[Result]) -> str:
    counts = Counter(_bar(result) for result in results)
    parts = [f"{name}: {counts[bar]}" for bar, name in enumerate(_NAMES) if counts[bar]]
    return f"checks by headroom: {', '.join(parts)}"


def _bar(result: Result) -> int:
    return 0 if not result.headroom else 1 + bisect_left(_ENDS, result.headroom)


def _plot(results: Sequence[Result], name: str) -> Markup:
    """Draw a bar per range of headroom, by what became of the checks, as SVG that takes the page's colours."""
    import matplotlib as mpl  # noqa: PLC0415 (of the extra `report`, only where it is installed)
    from matplotlib.backends.backend_svg import FigureCanvasSVG  # noqa: PLC0415 (as above)
    from matplotlib.figure import Figure  # noqa: PLC0415 (as above)

    # Text stays text, and no random id or date changes the page.
    style: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "gradconform",
        "font.family": "sans-serif",
        "font.size": 9,
    }
    style |= dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK)
    file = io.StringIO()
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.6, 2.1), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        bottoms = [0] * len(_NAMES)
        for series, colour in _COLOURS.items():
            counts = Counter(_bar(result) for result in results if _series(result) == series)
            heights = [counts[bar] for bar in range(len(_NAMES))]
            if any(heights):
                axes.bar(_NAMES, heights, bottom=bottoms, color=colour, label=series)
            bottoms = [below + height for below, height in zip(bottoms, heights, strict=True)]
        for bar, total in enumerate(bottoms):
            axes.annotate(str(total or ""), (bar, total), ha="center", va="bottom")
        # One check among a thousand is seen as well; between 0 and 1 there is nothing.
        axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 3 * max(bottoms))
        axes.set(xlabel="largest error, as a part of its bound", ylabel="checks")
        axes.axvline(_ENDS.index(1.0) + 1.5, color=_INK, linewidth=0.8, linestyle="--")
        axes.legend(frameon=False, fontsize=8)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _inline(file.getvalue(), name)


def _series(result: Result) -> str:
    return result.status if result.status in {"passed", "failed"} else "otherwise"


def _inline(svg: str, name: str) -> Markup:
    """Return the SVG element alone, with ids of its own and the page's text colour; it holds no text of a report."""
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return Markup(svg)  # noqa: S704 (the plot has numbers and the words above, nothing that a report says)
