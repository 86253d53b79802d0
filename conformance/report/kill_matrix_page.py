"""The kill matrix as one HTML page that needs nothing else: area by topic in numbers, check by fault in colour."""

from __future__ import annotations

from html import escape
from string import Template

from gradconform.report.kill_matrix import verdict_line
from gradconform.selftest.matrix import KillMatrix, unique
from gradconform.version import CONTRACT_VERSION, KIT_VERSION

_CELL = 6

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<title>gradconform selftest: kill matrix</title>
<style>
:root { color-scheme: light dark; --line: #8884; --kill: #2a7fd4; --named: #d9822b; --bad: #d43f3a; }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; }
table { border-collapse: collapse; }
td, th { border: 1px solid var(--line); padding: 0.2em 0.6em; text-align: right; }
th { font-weight: 600; }
th:first-child { text-align: left; }
.scroll { overflow: auto; }
.bad { color: var(--bad); }
svg { background: #8881; }
.k { fill: var(--kill); }
.n { fill: var(--named); }
</style>
</head>
<body>
<h1>Kill matrix</h1>
<p>$where</p>
<p$role>$verdict</p>
<h2>Faults killed, by area of the contract and topic of the fault</h2>
<div class="scroll"><table>$areas</table></div>
<h2>Check by fault</h2>
<p>One row per check, one column per fault; a coloured cell is a kill, in the second colour where the fault names the
check. Point at a cell for the names.</p>
<div class="scroll">$cells</div>
<h2>Faults</h2>
<div class="scroll"><table>$faults</table></div>
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
        where=escape(where),
        role="" if matrix.good else ' class="bad"',
        verdict=escape(verdict_line(matrix).text),
        areas=_areas(matrix),
        cells=_cells(matrix),
        faults=_faults(matrix),
    )


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
    drawn = []
    for column, outcome in enumerate(matrix.faults):
        named = set(outcome.named)
        for check in outcome.failed:
            if check in rows:
                title = escape(f"{check} fails {outcome.name}")
                kind = "n" if check in named else "k"
                place = f'x="{column * _CELL}" y="{rows[check] * _CELL}" width="{_CELL - 1}" height="{_CELL - 1}"'
                drawn.append(f'<rect class="{kind}" {place}><title>{title}</title></rect>')
    size = f'width="{len(matrix.faults) * _CELL}" height="{len(rows) * _CELL}"'
    label = escape(f"{len(rows)} checks by {len(matrix.faults)} faults")
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" {size}>{"".join(drawn)}</svg>'


def _faults(matrix: KillMatrix) -> str:
    rows = [_row("fault", "topic", "checks that failed", "named, of all named", "idea", head=True)]
    for outcome in matrix.faults:
        named = f"{len(outcome.named) - len(outcome.named_passed)} of {len(outcome.named)}"
        rows.append(_row(outcome.name, outcome.topic, len(outcome.failed), named, outcome.idea))
    return "".join(rows)
