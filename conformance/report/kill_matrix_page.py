"""The kill matrix as one HTML page that needs nothing else: area by topic in numbers, check by fault in colour."""

from __future__ import annotations

from html import escape
from string import Template

from gradconform.report.kill_matrix import verdict_line
from gradconform.report.page.rendering import stylesheet
from gradconform.selftest.matrix import KillMatrix, unique
from gradconform.selftest.subject import Outcome
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

_CELL = 6

#: What is kept free for the names of the areas.
_LEFT = 72

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>gradconform selftest: kill matrix</title>
<style>
$style
.words td:last-child { min-width: 18em; }
details p { max-width: 70em; }
svg { background: #8881; }
svg text { font-size: 10px; fill: CanvasText; }
svg line { stroke: var(--line); }
.k { fill: var(--kill); }
.n { fill: var(--named); }
</style>
</head>
<body>
<h1>Kill matrix</h1>
<p>$where</p>
<p$role>$verdict</p>
<h2>Faults killed, by area of the contract and topic of the fault</h2>
$areas
<h2>Check by fault</h2>
<p>One row per check, one column per fault; a coloured cell is a kill, in the second colour where the fault names the
check. Point at a cell for the names; below, every fault opens to the checks that failed.</p>
$cells
<h2>Faults</h2>
$faults
<h2>Right variants</h2>
$variants
$apart
<h2>Checks that failed, by fault</h2>
$opened
</body>
</html>
""")


def kill_page(matrix: KillMatrix) -> str:
    """Return the page; every name in it is escaped."""
    question = matrix.question
    where = (
        f"gradconform {KIT_VERSION}, contract {CONTRACT_VERSION}, profile {question.profile}, "
        f"on {question.device} {question.dtype}"
    )
    return _PAGE.substitute(
        style=stylesheet(),
        where=escape(where),
        role="" if matrix.good else ' class="bad"',
        verdict=escape(verdict_line(matrix).text),
        areas=_scroll("faults killed by area and topic", f"<table>{_areas(matrix)}</table>"),
        cells=_scroll("check by fault", _cells(matrix)),
        faults=_scroll("faults", f'<table class="words">{_faults(matrix)}</table>'),
        variants=_scroll("right variants", f'<table class="words">{_variants(matrix)}</table>'),
        apart=_apart(matrix),
        opened="".join(map(_opened, matrix.faults)),
    )


def _scroll(label: str, inner: str) -> str:
    """Return a part that scrolls by itself where it is too wide; the keyboard reaches it as well."""
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(label)}">{inner}</div>'


def _row(*cells: object, head: bool = False) -> str:
    """Return one row; the first cell is a heading."""
    first, *rest = (escape(str(cell)) for cell in cells)
    tag = "th" if head else "td"
    return f"<tr><th>{first}</th>{''.join(f'<{tag}>{cell}</{tag}>' for cell in rest)}</tr>"


def _areas(matrix: KillMatrix) -> str:
    counts = matrix.areas()
    topics = unique([outcome.topic for outcome in matrix.faults])
    rows = [_row("area", *topics, head=True)]
    areas = unique([check.partition(".")[0] for check in matrix.checks])
    rows += [_row(area, *(counts.get((area, topic), 0) for topic in topics)) for area in areas]
    totals = [sum(outcome.topic == topic for outcome in matrix.faults) for topic in topics]
    return "".join([*rows, _row("faults in all", *totals)])


def _cells(matrix: KillMatrix) -> str:
    rows = {check: number for number, check in enumerate(matrix.checks)}
    drawn = _labels(matrix)
    for column, outcome in enumerate(matrix.faults):
        named = set(outcome.named)
        for check in outcome.failed:
            if check in rows:
                title = escape(f"{check} fails {outcome.name}")
                kind = "n" if check in named else "k"
                place = f'x="{_LEFT + column * _CELL}" y="{rows[check] * _CELL}"'
                size = f'width="{_CELL - 1}" height="{_CELL - 1}"'
                drawn.append(f'<rect class="{kind}" {place} {size}><title>{title}</title></rect>')
    size = f'width="{_LEFT + len(matrix.faults) * _CELL}" height="{max(len(rows) * _CELL, 12)}"'
    label = escape(f"{len(rows)} checks by {len(matrix.faults)} faults")
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>{"".join(drawn)}</svg>'


def _labels(matrix: KillMatrix) -> list[str]:
    """Return the name of every area beside its first row, with a line above it."""
    areas = [check.partition(".")[0] for check in matrix.checks]
    width = _LEFT + len(matrix.faults) * _CELL
    drawn = []
    for area in unique(areas):
        top = areas.index(area) * _CELL
        drawn.append(
            f'<line x1="0" x2="{width}" y1="{top}" y2="{top}"/><text x="2" y="{top + 10}">{escape(area)}</text>'
        )
    return drawn


def _faults(matrix: KillMatrix) -> str:
    rows = [_row("fault", "verdict", "topic", "checks that failed", "named, of all named", "idea", head=True)]
    for outcome in matrix.faults:
        named = f"{len(outcome.named) - len(outcome.named_passed)} of {len(outcome.named)}"
        verdict = _verdict(outcome)
        rows.append(_row(outcome.name, verdict, outcome.topic, len(outcome.failed), named, outcome.idea))
    return "".join(rows)


def _verdict(outcome: Outcome) -> str:
    if outcome.broke is not None or outcome.errors:
        return "could not be judged"
    if outcome.role == "variant":
        return "clean" if outcome.right else "ACCUSED"
    return "not tried" if outcome.untried else "killed" if outcome.killed else "SURVIVED"


def _variants(matrix: KillMatrix) -> str:
    rows = [_row("variant", "verdict", "passed", "failed", head=True)]
    rows += [_row(o.name, _verdict(o), o.passed, ", ".join(o.failed) or "none") for o in matrix.variants]
    return "".join(rows)


def _apart(matrix: KillMatrix) -> str:
    """Return what counts as nothing in this dtype, with the reasons; nothing where there is nothing."""
    told = {
        f"No fault in {matrix.question.dtype}": dict(matrix.left_out),
        "Checks that plain autograd itself cannot do here": matrix.impossible,
    }
    parts = []
    for title, reasons in told.items():
        if reasons:
            rows = "".join(_row(name, why) for name, why in reasons.items())
            table = _scroll(title, f'<table class="words">{rows}</table>')
            parts.append(f"<h2>{escape(title)}</h2>{table}")
    return "".join(parts)


def _opened(outcome: Outcome) -> str:
    """Return a fault that opens to the checks that failed: the cells of its column for whoever has no pointer."""
    checks = ", ".join(outcome.failed) or "none"
    summary = f"{outcome.name}: {len(outcome.failed)}"
    return f"<details><summary>{escape(summary)}</summary><p>{escape(checks)}</p></details>"
